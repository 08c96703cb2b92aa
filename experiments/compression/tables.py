"""What tables in 16 bits cost in accuracy; see README.md beside this.

    python experiments/compression/tables.py

Writes tables.json after every run, goes on where it was interrupted, and prints the
table of the README.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import statistics
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
from embark_kernels import update

from embark_jax.config import reading
from embark_jax.run import experiment

HERE = Path(__file__).parent
CONFIG = HERE.parent.parent / "configs" / "movielens_100k.yaml"
RESULTS = HERE / "tables.json"
SEEDS = (0, 1)
OPTIMIZERS = {
    "row-wise Adagrad": [],
    "SGD": [
        "embedding.optimizer={kind: sgd, learning_rate: 10}",
    ],
}
KINDS = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "bfloat16, to the nearest": "bfloat16",
    "float16, to the nearest": "float16",
}
"""Formats; rounding is stochastic if nothing else is said."""
CASES = [
    *(("row-wise Adagrad", kind) for kind in KINDS),
    *(("SGD", kind) for kind in ("float32", "bfloat16", "float16")),
]


def to_the_nearest(values: jax.Array, bits: jax.Array, dtype) -> jax.Array:
    return values.astype(jnp.dtype(dtype))


def train(kind: str, optimizer: str, seed: int) -> dict[str, float]:
    """The test metrics of a run."""
    overrides = [f"seed={seed}", f"embedding.dtype={KINDS[kind]}"]
    setup = experiment.build(reading.load(CONFIG, overrides + OPTIMIZERS[optimizer]))
    nearest = mock.patch.object(update, "round_stochastically", to_the_nearest)
    with nearest if "nearest" in kind else contextlib.nullcontext():
        trainer = setup.trainer()
        trainer.fit(setup.dataset, setup.steps, progress=False)
    size = setup.config.train.batch_size
    metrics = dataclasses.asdict(trainer.evaluate(setup.dataset.test_batches(size)))
    return {name: metrics[name] for name in ("auc", "log_loss")}


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed, (optimizer, kind) in itertools.product(SEEDS, CASES):
        name = f"{optimizer}/{kind}/{seed}"
        if name not in results:
            results[name] = train(kind, optimizer, seed)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    seeds = " | ".join(f"seed {seed}" for seed in SEEDS)
    print(f"| rows' optimizer | tables | {seeds} | mean difference |\n{'|---' * 5}|")
    for optimizer, kind in CASES:
        found, exact = (
            [results[f"{optimizer}/{each}/{seed}"]["auc"] for seed in SEEDS]
            for each in (kind, "float32")
        )
        off = statistics.mean(found) - statistics.mean(exact)
        aucs = " | ".join(f"{auc:.5f}" for auc in found)
        print(f"| {optimizer} | {kind} | {aucs} | {off:+.5f} |")


if __name__ == "__main__":
    main()
