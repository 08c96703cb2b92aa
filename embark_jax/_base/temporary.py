"""Temporary folders that are removed however a command ends."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

_removals: list[weakref.finalize] = []


def temporary_folder(owner: object) -> Path:
    """Makes a folder that goes with its owner, which nobody else can read, or know by
    name before."""
    folder = Path(tempfile.mkdtemp(prefix="embark-"))
    _removals.append(weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True))
    return folder


def remove_temporary_folders() -> None:
    """Removes those that are left, for a process that ends at once."""
    for remove in _removals:  # one that was removed is not again
        remove()
