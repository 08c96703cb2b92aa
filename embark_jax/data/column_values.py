"""Describes the values of columns, to find a NaN, and scales that are far off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.data.batch import Batch
from embark_jax.plans.tables import PADDING_ID

MIN_SCALE, MAX_SCALE = 0.01, 10
"""Sizes of dense values that suit models; logarithms of counts are up to 10."""
SCALES_SHOWN = 5
"""Number of columns in a warning."""


def feature_statistics(batch: Batch) -> list[str]:
    """Describes each column of a batch on a line, to find where a NaN came from."""
    columns = {"labels": batch.labels}
    columns |= {f"dense[{i}]": column for i, column in enumerate(batch.dense.T)}
    columns |= {f"weights of {n}": np.asarray(w) for n, w in batch.weights.items()}
    if batch.sample_weights is not None:
        columns["sample weights"] = batch.sample_weights
    lines = []
    for name, values in columns.items():
        finite = values[np.isfinite(values)]
        bad = f"{values.size - finite.size} of {values.size} not finite"
        if finite.size:
            mean = finite.mean(dtype=np.float64)
            limits = f"min {finite.min():.4g}, max {finite.max():.4g}"
            bad = f"{limits}, mean {mean:.4g}, {bad}"
        lines.append(f"{name}: {bad}")
    for name, ids in batch.ids.items():
        ids = np.asarray(ids)
        real = ids[ids != PADDING_ID]
        if real.size:
            unique = np.unique(real).size
            lines.append(
                f"ids of {name}: min {real.min()}, max {real.max()}, "
                f"{unique} unique of {real.size}, {ids.size - real.size} padding"
            )
        else:
            lines.append(f"ids of {name}: {ids.size} padding")
    return lines


def scale_warnings(dense: np.ndarray, names: Sequence[str]) -> list[str]:
    """Warns of columns whose values are far larger or smaller than 1, if there are any.

    Models add and multiply dense values as they are; cross layers even square them
    repeatedly.

    Args:
      dense: ``[samples, columns]``.
      names: names of the columns.
    """
    typical = np.sqrt(np.mean(np.square(dense, dtype=np.float64), axis=0))
    largest = np.abs(dense).max(axis=0, initial=0)
    wrong = (typical > MAX_SCALE) | ((largest > 0) & (largest < MIN_SCALE))
    if not wrong.any():
        return []
    problems = [
        f"{name} about {size:.3g}"
        for name, size, far in zip(names, typical, wrong, strict=True)
        if far
    ]
    shown = ", ".join(problems[:SCALES_SHOWN])
    if len(problems) > SCALES_SHOWN:
        shown += f" and {len(problems) - SCALES_SHOWN} more"
    return [
        f"dense columns are far from 1 in size, so that training may fail: {shown} "
        f"(root mean square of the first {len(dense):,} samples); give each as (value "
        "- mean) / standard deviation, with those of the training samples, or counts "
        "as log(1 + value): dense.NAME=standardize or =log of `embark data prepare`"
    ]
