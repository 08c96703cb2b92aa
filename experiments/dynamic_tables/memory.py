"""Host memory of a process whose dynamic table meets millions of different keys.

    python experiments/dynamic_tables/memory.py host
    python experiments/dynamic_tables/memory.py host --keys 6_000_000 --dim 32

Adds a line to ``memory.jsonl`` beside this for each way.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import psutil

import embark_jax as ej
from embark_jax.plans.storage import Placement

HERE = Path(__file__).resolve().parent
SLOTS = 2**20
PARTS = 12
"""Measurements of a run, evenly spread."""


def trainer_of(
    evicted: Any, dim: int, batch_size: int, expected: int | None
) -> ej.Trainer:
    """Of one table on one device, whose rows have no optimizer state."""
    table = ej.TableSpec.dynamic(
        "user", dim, SLOTS, SLOTS, evicted=evicted, expected_keys=expected
    )
    plan = ej.Plan(
        (ej.FeatureSpec("user"),),
        (Placement(table, "ub", 1, 1, (0,)),),
        1,
        1,
        batch_size,
        {f"ub_{dim}_{table.tier}_user": batch_size},
    )
    model = ej.FunctionModel(
        {"weight": jnp.ones(dim)},
        lambda params, dense, embeddings: embeddings["user"] @ params["weight"],
    )
    return ej.Trainer(
        model,
        ej.EmbeddingCollection(plan, plan.make_mesh()),
        dense_optimizer=optax.sgd(0.0),
        embedding_optimizer=ej.SGD(0.1),
    )


def batches(steps: int, size: int):
    """Batches of which each has other keys, all over 64 bits."""
    for step in range(steps):
        number = np.arange(step * size, (step + 1) * size, dtype=np.uint64)
        keys = (number * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        yield ej.Batch(
            np.zeros((size, 0), np.float32),
            {"user": keys[:, None]},
            np.zeros(size, np.float32),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evicted", choices=("host", "discard"))
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--dim", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2**19)
    parser.add_argument("--expected", type=int, help="the table's expected_keys")
    options = parser.parse_args()
    trainer = trainer_of(options.evicted, options.dim, options.batch, options.expected)
    steps, process = -(-options.keys // options.batch), psutil.Process()
    began, memory = time.perf_counter(), []
    for result in trainer.iterate_batches(batches(steps, options.batch)):
        if result.step % max(1, steps // PARTS) == 0:
            memory.append([result.step * options.batch, process.memory_info().rss])
    record = {
        "evicted": options.evicted,
        "keys": steps * options.batch,
        "slots": SLOTS,
        "row_bytes": 4 * options.dim,
        "expected_keys": options.expected,
        "seconds": round(time.perf_counter() - began, 1),
        "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "keys_and_bytes": memory,
    }
    with (HERE / "memory.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(record)


if __name__ == "__main__":
    main()
