"""Exports that somebody changes who knows their format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embark_jax._base.files import sha256_of
from embark_jax.data.hashed_file import checksum_of


def sign(
    folder: Path, change: Callable[[dict[str, Any]], Any] = lambda it: None
) -> None:
    """Changes ``model.json``, with all checksums as they then must be."""
    path = folder / "model.json"
    description = json.loads(path.read_text())
    for file in description["files"]:
        file["bytes"] = (folder / file["file"]).stat().st_size
        file["sha256"] = sha256_of(folder / file["file"])
    change(description)
    description["checksum"] = checksum_of(description)
    path.write_text(json.dumps(description))
