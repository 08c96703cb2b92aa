"""What all errors have in common that a user can fix."""

from __future__ import annotations


class UserError(Exception):
    """An error that a user can fix: its message says what is wrong, where, and what to
    do. The command line shows it without a traceback.

    Attributes:
      may_pass: whether the same command may succeed later, with nothing changed, as
        where a bucket cannot be reached.
    """

    may_pass = False


def may_pass(error: Exception) -> bool:
    """Whether what an error has ended may succeed later, with nothing changed."""
    return not isinstance(error, UserError) or error.may_pass


class DataError(UserError, ValueError):
    """Data that break a rule; the message says where, which value, and what to do."""
