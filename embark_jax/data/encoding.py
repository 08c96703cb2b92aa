"""The folder ``encoding/`` of a run or an export, which has what makes batches from raw
rows: the manifest of the data, and the vocabularies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from embark_jax._base.files import confined
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import SPLITS, Manifest
from embark_jax.data.table_values import TableValues
from embark_jax.data.vocabulary import VOCABULARY

FOLDER = "encoding"


def save_encoding(prepared: Path, manifest: Manifest, out: Path) -> None:
    """Writes what encodes raw rows to a folder. Vocabularies are hard links where
    possible, since they never change in place.

    Args:
      prepared: folder of the data.
      manifest: manifest of the data.
      out: the folder to fill.

    Raises:
      DataError: if a vocabulary is not as it was written.
    """
    (out / VOCABULARY).mkdir(parents=True, exist_ok=True)
    for file in manifest.vocabularies:
        source, target = file.verified(prepared), confined(out, file.file)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    # Rows that are scored have their histories as lists.
    changed = {"files": dict.fromkeys(SPLITS, ()), "events": None}
    manifest.model_copy(update=changed).save(out)


def copy_encoding(run: Path, out: Path) -> None:
    """Copies a run's encoding, if it has one."""
    if (run / FOLDER / manifests.FILE_NAME).exists():
        values = read_encoding(run / FOLDER)
        save_encoding(values.folder, values.manifest, out / FOLDER)


def read_encoding(folder: Path) -> TableValues:
    """Reads the manifest of an encoding.

    Raises:
      DataError: if it is missing or damaged.
    """
    mend = f"copy {folder} anew"
    return TableValues(folder, manifests.read(folder, mend), mend)
