"""JSON files of what was measured on a machine, by kind of device.

They lie in ``$EMBARK_KERNELS_CACHE``, by default ``~/.cache/embark_kernels``, and are
only caches: a damaged file counts as absent, with a warning.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax


def cache_file(name: str) -> Path:
    folder = os.environ.get("EMBARK_KERNELS_CACHE")
    return Path(folder or Path.home() / ".cache" / "embark_kernels") / name


def read_for_device(path: Path) -> dict[str, Any]:
    """Returns what the file has for this machine's kind of device."""
    if not path.exists():
        return {}
    kinds = _read(path, path.stat().st_mtime_ns)
    return kinds.get(jax.devices()[0].device_kind, {})


def add_for_device(path: Path, values: dict[str, Any]) -> None:
    """Adds values for this machine's kind of device. The file is written as a whole or
    not at all: other processes may use it, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = dict(_read(path, path.stat().st_mtime_ns)) if path.exists() else {}
    kind = jax.devices()[0].device_kind
    kinds[kind] = {**kinds.get(kind, {}), **values}
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".json", delete=False
    ) as file:
        json.dump(kinds, file, indent=1, sort_keys=True)
    os.replace(file.name, path)


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> dict[str, dict[str, Any]]:
    """Reads ``{device kind: {key: value}}``; a new ``changed`` reads the file again."""
    try:
        kinds = json.loads(path.read_text())
        if not isinstance(kinds, dict) or not all(
            isinstance(values, dict) for values in kinds.values()
        ):
            raise ValueError("not a JSON object of objects")
    except ValueError as error:
        warnings.warn(f"{path}: {error}; ignored, delete it", stacklevel=2)
        return {}
    return kinds
