"""Checks that prepared data are as they were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.listed import verified
from embark_jax.data.manifest import MEND


class Verified(NamedTuple):
    """What was verified.

    Attributes:
      files, bytes: how much was read.
    """

    files: int
    bytes: int


def verify(
    folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Reads every file of a folder, and compares its hash with the manifest's.

    Args:
      folder: a folder with a ``manifest.json``.
      progress: called with how many bytes were read, of how many.

    Raises:
      DataError: if files are missing or damaged; the message names each.
    """
    manifest = manifests.read(folder)
    files = [*manifests.all_parts(manifest), *manifest.vocabularies]
    total, done, problems = sum(file.bytes for file in files), 0, []
    for file in files:
        try:
            verified(folder, file)
        except (DataError, OSError) as error:
            problems.append(str(error))
        done += file.bytes
        progress(done, total)
    if problems:
        raise DataError("\n  ".join([f"{folder}: is damaged; {MEND}", *problems]))
    return Verified(len(files), total)
