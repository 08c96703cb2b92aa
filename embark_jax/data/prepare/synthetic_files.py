"""Writes synthetic clicks as prepared data, to time and test input without real
data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from embark_jax._base.files import new_folder
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import Manifest, PreparedFeature, SampleFile
from embark_jax.data.pipeline import Workers
from embark_jax.data.synthetic import SyntheticClicks

_Split = Literal["train", "test"]
FILE_BYTES = 64 * 2**20


def write(
    data: SyntheticClicks,
    out: Path,
    made_from: Mapping[str, Any],
    workers: Workers | None = None,
) -> Manifest:
    """Writes all samples of a synthetic data set.

    Args:
      data: the data set, without weights, which the files do not hold.
      out: a new or empty folder.
      made_from: what determines the samples; it is kept in the manifest.
      workers: threads; progress is a number of files. None takes one per core.

    Raises:
      DataError: if ``out`` holds something.
      ValueError: if a feature is weighted.
    """
    for feature in data.features:
        if feature.weighted:
            raise ValueError(f"feature {feature.name!r} is weighted, must not be")
    manifest = Manifest.of(
        made_from=made_from,
        dense=tuple(f"x{i}" for i in range(data.dense_features)),
        features={
            f.name: PreparedFeature(table=f.table, hotness=f.hotness, pooling=f.pooling)
            for f in data.features
        },
        table_rows=data.table_rows,
    )
    sizes: dict[_Split, int] = {
        "train": data.train_samples,
        "test": data.test_samples,
    }
    rows = max(1, FILE_BYTES // manifests.BLOCK_BYTES) * manifest.block_rows
    jobs: list[tuple[_Split, int, int]] = [
        (split, number, min(rows, size - start))
        for split, size in sizes.items()
        for number, start in enumerate(range(0, size, rows))
    ]

    def make(job: tuple[_Split, int, int]) -> SampleFile:
        split, number, count = job
        file = f"{split}/{number:06}.arrow"
        batch = data.batch(split, number * rows, count)
        return manifests.write_samples(folder, file, batch, manifest)

    files: dict[str, tuple[SampleFile, ...]] = dict.fromkeys(manifests.SPLITS, ())
    with new_folder(out) as folder:
        made = (workers or Workers()).map("write", make, jobs)
        for file, (split, _, _) in zip(made, jobs, strict=True):
            files[split] += (file,)
        manifest = manifest.model_copy(
            update={"files": files, "bayes_auc": data.bayes_auc()}
        )
        manifest.save(folder)
    return manifest
