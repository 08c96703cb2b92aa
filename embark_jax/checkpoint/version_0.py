"""Converts checkpoints of version 0, which Orbax wrote.

They held the padded rows of each table with their optimizer state; the dense state; and
step, identity and bad ids in JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.checkpoint.files import (
    PAGE_BYTES,
    PIECE_BYTES,
    Buffers,
    FileWriter,
    write_file,
)
from embark_jax.checkpoint.folder import ORBAX_NAME, ORBAX_SUFFIX, CheckpointFolder
from embark_jax.checkpoint.layout import array_name
from embark_jax.checkpoint.manifest import NAME, Block, Manifest, SavedArray
from embark_jax.embedding.logical import RangeLayout

WEIGHTS = "weights"


def convert(folder: Path, say: Callable[[str], None]) -> None:
    """Converts all checkpoints of version 0 in a run's ``checkpoints``, one by one.

    A killed conversion resumes where it was. Host memory holds one table at a time.

    Args:
      folder: the run's ``checkpoints``.
      say: gets a line for each checkpoint that is converted.

    Raises:
      CheckpointError: if there is none, or one cannot be read.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    target = CheckpointFolder(folder.absolute())
    target.prepare()
    try:
        old = [path for path in target.path.iterdir() if (path / ORBAX_NAME).exists()]
        if not old:
            raise CheckpointError(f"{folder}: has no checkpoint of version 0")
        for path in old:
            step = int(path.name.removesuffix(ORBAX_SUFFIX))
            aside = target.path / f"{step}{ORBAX_SUFFIX}"
            if path != aside:
                path.rename(aside)
            if not (target.path / str(step)).exists():
                _convert(target, step, aside)
            shutil.rmtree(aside)
            say(f"{target.path / str(step)} is converted")
    finally:
        target.release()


def _convert(target: CheckpointFolder, step: int, old: Path) -> None:
    folder = target.begin(step)
    arrays: dict[str, SavedArray] = {}
    files: dict[str, int] = {}

    def write(name: str, array: np.ndarray) -> None:
        file = f"array-{len(arrays)}.bin"
        files[file] = _write(folder / file, array)
        block = Block(file, 0, (0,) * array.ndim, array.shape)
        arrays[name] = SavedArray(str(array.dtype), array.shape, (block,))

    try:
        run = json.loads((old / "run" / "metadata").read_text())
        tables = run["identity"]["tables"]
        for path, array in jax.tree.leaves_with_path(_read(old / "dense")):
            write(array_name(path), array)
        for table, spec in tables.items():
            for state, array in _read(old / "tables", table)[table].items():
                kind, suffix = "storages", ""
                if state != WEIGHTS:
                    kind, suffix = "embedding_state", f".{state}"
                write(f"{kind}.{table}{suffix}", array[: spec["rows"]])
    except Exception as error:  # Orbax has no common class for what it may raise
        target.discard(folder)
        reason = str(error).partition("\n")[0][:500]
        raise CheckpointError(
            f"{old}: is damaged, delete it to use an older one "
            f"({type(error).__name__}: {reason})"
        ) from error
    layouts = {
        name: (RangeLayout(name, 0, spec["rows"], spec["dim"], ((0,),)),)
        for name, spec in tables.items()
    }
    manifest = Manifest(step, run["identity"], run["bad_ids"], files, arrays, layouts)
    write_file(folder / NAME, manifest.to_json().encode())
    target.commit(step, files)


def _read(item: Path, only: str | None = None) -> Mapping[str, Any]:
    """Reads an item's arrays in NumPy, or only those under one of its keys."""
    handler = ocp.PyTreeCheckpointHandler()
    with ocp.Checkpointer(handler) as checkpointer:
        tree = checkpointer.metadata(item).item_metadata.tree
        wanted = tree if only is None else {only: tree[only]}
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        args = ocp.args.PyTreeRestore(
            wanted,
            restore_args=jax.tree.map(lambda _: as_numpy, wanted),
            partial_restore=True,
        )
        return checkpointer.restore(item, args=args)


def _write(path: Path, array: np.ndarray) -> int:
    """Writes an array; returns the size of the file."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    size = -(-len(data) // PAGE_BYTES) * PAGE_BYTES
    writer, buffer = FileWriter(path, size), Buffers(0).take()
    for offset in range(0, size, PIECE_BYTES):
        piece = data[offset : offset + PIECE_BYTES]
        buffer[: len(piece)] = piece
        buffer[len(piece) :] = 0
        writer.write(offset, buffer[: min(PIECE_BYTES, size - offset)])
    writer.close()
    return size
