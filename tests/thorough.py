"""Cases of which ``make test`` tries some, and ``make test-all`` the others too."""

from collections.abc import Container, Iterable

import pytest


def thorough(cases: Iterable, quick: Container, unpack: bool = False) -> list:
    """Parameters of a test: those that are not in ``quick`` are marked slow.

    Args:
      unpack: whether a case is a tuple of the values of several parameters.
    """
    return [
        case
        if case in quick
        else pytest.param(*(case if unpack else [case]), marks=pytest.mark.slow)
        for case in cases
    ]
