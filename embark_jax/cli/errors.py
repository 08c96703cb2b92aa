"""How the command reports errors."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import NoReturn

from rich.console import Console

from embark_jax._base.errors import UserError
from embark_jax._base.temporary import remove_temporary_folders

CTRL_C_STATUS = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended, by the convention of shells."""


FIXABLE = UserError, OSError, MemoryError
"""Errors that a user can fix; all others are errors of this program."""


def show(error: Exception) -> None:
    """Prints one message if a user can fix the error, else a traceback."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        complain(f"{error.filename}: {error.strerror}")
    elif isinstance(error, FIXABLE):
        complain(str(error))
    else:
        traceback.print_exception(error)


def complain(message: str) -> None:
    """Prints ``error:`` and a message, whose markup is not interpreted."""
    Console(stderr=True).print("[red]error:[/red] ", end="")
    print(printable(message), file=sys.stderr, flush=True)


def end_at_ctrl_c() -> NoReturn:
    """Ends the process at once: an orderly exit would free what threads still use."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    remove_temporary_folders()
    os._exit(CTRL_C_STATUS)


def printable(text: str) -> str:
    """Escapes all characters that could control a terminal; line ends stay."""
    return "".join(
        char
        if char.isprintable() or char in "\n\t"
        else char.encode("unicode_escape").decode()
        for char in text
    )
