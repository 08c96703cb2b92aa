"""Claims a folder for prepared data: what is begun there goes on only with the data set
and the options that it was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embark_jax._base.errors import DataError
from embark_jax._base.files import read_json, write_json
from embark_jax._base.storage import local
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import Manifest

RAW = "raw"
"""The key of ``made_from`` that identifies the raw files."""
_STARTED = "made_from.json"
"""Name of the file that says what unfinished data are made from."""


def begun(out: Path, work: Path) -> dict[str, Any] | None:
    """What a folder was begun with; None if it is new.

    Raises:
      DataError: if it holds something else, or is damaged.
    """
    if (out / manifests.FILE_NAME).exists():
        return dict(manifests.read(out).made_from)
    if (started := work / _STARTED).exists():
        mend = f"delete {out}, and run the command again"
        if not isinstance(recorded := read_json(started, mend), dict):
            raise DataError(f"{started}: is damaged (is no mapping); {mend}")
        return recorded
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file, must be a folder; take another --out")
    if out.exists() and any(out.iterdir()):
        raise DataError(f"{out}: holds other files; take another --out")
    return None


def check_same(
    out: Path, recorded: Mapping[str, Any] | None, made_from: Mapping[str, Any]
) -> None:
    """Raises ``DataError`` if a folder was begun with other options."""
    if recorded is None:
        return
    wanted = json.loads(json.dumps(made_from))
    keys = sorted((recorded.keys() | wanted.keys()) - {RAW})
    if changed := [key for key in keys if recorded.get(key) != wanted.get(key)]:
        raise DataError(
            f"{out}: was made with other options ({', '.join(changed)}); take another "
            "--out, or delete it"
        )


def claim(out: Path, work: Path, made_from: Mapping[str, Any]) -> Manifest | None:
    """Claims the folder for this data set; returns its manifest if it is finished.

    Raises:
      DataError: if the folder holds something else, or is damaged.
    """
    recorded = begun(local(out), work)
    check_same(out, recorded, made_from)
    if recorded is None:
        write_json(work / _STARTED, made_from)
    finished = (out / manifests.FILE_NAME).exists()
    return manifests.load(out) if finished else None
