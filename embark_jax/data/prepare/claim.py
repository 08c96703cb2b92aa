"""Claims a folder for prepared data: what is begun there goes on only with the raw
files and the options that it was begun with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax._base.errors import DataError
from embark_jax._base.files import read_json, write_json
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import Manifest
from embark_jax.data.prepare.raw_contents import contents

RAW = "raw"
"""The key of ``made_from`` that identifies the raw files."""
_STARTED = "made_from.json"
"""Name of the file that says what unfinished data are made from."""


class Claim(NamedTuple):
    """A folder that was claimed.

    Attributes:
      made_from: what the data are made from, with the raw files.
      finished: the manifest, if an earlier command has finished the data.
    """

    made_from: dict[str, Any]
    finished: Manifest | None


def claim(
    out: Path,
    work: Path,
    made_from: Mapping[str, Any],
    raw: Sequence[Path] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Claim:
    """Claims a folder.

    Args:
      out: the folder.
      work: its folder for unfinished work.
      made_from: data set and options.
      raw: the raw files, which are identified by their contents.
      progress: called with how many bytes of them were hashed, of how many.

    Raises:
      DataError: if the folder holds something else, is damaged, or was begun with other
        options or raw files.
    """
    begun = _begun(out, work)
    if begun is not None:
        _check_same(out, begun, made_from)
    recorded = None if begun is None else begun.get(RAW, {})
    made_from = {**made_from, RAW: contents(raw, recorded, out, progress)}
    if begun is None:
        write_json(work / _STARTED, made_from)
    is_finished = (out / manifests.FILE_NAME).exists()
    return Claim(made_from, manifests.load(out) if is_finished else None)


def _begun(out: Path, work: Path) -> dict[str, Any] | None:
    """Returns what a folder was begun with; None if it is new."""
    if (out / manifests.FILE_NAME).exists():
        return dict(manifests.read(out).made_from)
    if (started := work / _STARTED).exists():
        if _names(out) == {work.name} and _names(work) == {_STARTED}:
            return None  # the command ended before it had read anything
        mend = f"delete {out}, and run the command again"
        if not isinstance(recorded := read_json(started, mend), dict):
            raise DataError(f"{started}: is damaged (is no mapping); {mend}")
        return recorded
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file, must be a folder; take another --out")
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out}: holds other files; take another --out")
    return None


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _check_same(
    out: Path, begun: Mapping[str, Any], made_from: Mapping[str, Any]
) -> None:
    """Raises ``DataError`` if a folder was begun with other options."""
    wanted = json.loads(json.dumps(made_from))
    keys = sorted((begun.keys() | wanted.keys()) - {RAW})
    if changed := [key for key in keys if begun.get(key) != wanted.get(key)]:
        raise DataError(
            f"{out}: was begun with other options ({', '.join(changed)}); take another "
            "--out, or delete it"
        )
