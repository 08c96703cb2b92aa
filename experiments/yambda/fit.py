"""Fits the generator of Yambda's files to the published figures of its skew.

    python -m experiments.yambda.fit

Prints the attributes of ``Yambda``, and what they give.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import minimize

from embark_jax.data.prepare.yambda_files import Yambda
from experiments.yambda.skew import (
    PUBLISHED_LOAD,
    PUBLISHED_UNIQUE,
    row_wise_load,
    steps,
)

NAMES = (
    "events_a_day",
    "artist_exponent",
    "catalogue_exponent",
    "taste_exponent",
    "album_exponent",
    "item_exponent",
    "without_album",
)
START = (21.0, 0.8, 0.8, 1.4, 0.6, 0.05, 0.056)


def figures(data: Yambda, devices: int) -> dict[str, float]:
    """The published quantities, of generated data."""
    of_devices = list(steps(data, devices))
    unique = {
        f"unique {name}": float(np.mean([d[name].unique_share for d in of_devices]))
        for name in PUBLISHED_UNIQUE
    }
    loads = {f"load {name}": row_wise_load(of_devices, name) for name in PUBLISHED_LOAD}
    return unique | loads


def published() -> dict[str, float]:
    unique = {f"unique {name}": share for name, share in PUBLISHED_UNIQUE.items()}
    return unique | {f"load {name}": load for name, load in PUBLISHED_LOAD.items()}


def fit(devices: int = 32, evaluations: int = 60) -> Yambda:
    """Minimizes the squares of the logarithms of quotients."""

    def data_of(values) -> Yambda:
        limited = np.maximum(values, 0.0)
        return dataclasses.replace(Yambda(), **dict(zip(NAMES, limited, strict=True)))

    def loss(values) -> float:
        quotients = [
            value / published()[name]
            for name, value in figures(data_of(values), devices).items()
        ]
        print(np.round(values, 4), np.round(quotients, 2), flush=True)
        return float(np.sum(np.log(quotients) ** 2))

    options = {"maxfev": evaluations, "fatol": 1e-3, "xatol": 1e-2}
    return data_of(minimize(loss, START, method="Nelder-Mead", options=options).x)


if __name__ == "__main__":
    fitted = fit()
    print(fitted)
    print(figures(fitted, 32))
