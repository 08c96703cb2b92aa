"""Models of unlike tables, from a seed: what no published list looks like.

Rows, widths and hotness are log-normal, cut at what production models have; one table
takes a third of the fleet's memory.
"""

from __future__ import annotations

import numpy as np

from embark_jax.plans.fleet import Fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec

ROWS, WIDTHS, HOTNESS = (10, 1e8), (4, 2048), (1, 5000)
SPREAD = 1 / 6
"""Standard deviation of logarithms, as a share of their range."""
LARGE_SHARE = 1 / 3
STATE = 2
"""float32 values for each parameter, with what an optimizer keeps at most."""
REST_SHARE = 0.2
"""Of the fleet's memory, that all other tables take at most."""


def model(
    tables: int, fleet: Fleet, seed: int
) -> tuple[list[TableSpec], list[FeatureSpec]]:
    """So many tables, each read by one feature.

    Args:
      tables: how many.
      fleet: whose memory the largest takes a third of.
      seed: of all that is random.
    """
    rng = np.random.default_rng(seed)
    rows, widths, hotness = (
        _log_normal(rng, tables, low, high) for low, high in (ROWS, WIDTHS, HOTNESS)
    )
    widths = 2 ** np.round(np.log2(widths)).astype(int)
    memory = fleet.devices * fleet.device.memory_bytes / (4 * STATE)
    widths[0] = 128
    rows[0] = LARGE_SHARE * memory / widths[0]
    values = float(rows[1:] @ widths[1:])
    rows[1:] *= min(1.0, REST_SHARE * memory / values)
    rows = np.maximum(rows, ROWS[0]).astype(np.int64)
    specs = [TableSpec(f"t{i}", int(rows[i]), int(widths[i])) for i in range(tables)]
    ids = np.maximum(1, np.round(hotness)).astype(int)
    return specs, [
        FeatureSpec(spec.name, hotness=int(each))
        for spec, each in zip(specs, ids, strict=True)
    ]


def _log_normal(
    rng: np.random.Generator, number: int, low: float, high: float
) -> np.ndarray:
    middle, spread = (np.log(low) + np.log(high)) / 2, np.log(high / low) * SPREAD
    return np.clip(np.exp(rng.normal(middle, spread, number)), low, high)
