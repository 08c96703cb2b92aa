"""Host memory of a process whose dynamic table meets 50 million different keys.

Adds a line to ``memory.jsonl`` beside this for each way.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import psutil

import embark_jax as ej
from embark_jax.plans.storage import Placement

HERE = Path(__file__).resolve().parent
BATCH, KEYS, SLOTS, DIM = 2**19, 50_000_000, 2**20, 2
EVERY = 8


def trainer_of(evicted: str) -> ej.Trainer:
    """Of one table on one device, whose rows have no optimizer state."""
    table = ej.TableSpec.dynamic("user", DIM, SLOTS, SLOTS, evicted=evicted)
    plan = ej.Plan(
        (ej.FeatureSpec("user"),),
        (Placement(table, "ub", 1, 1, (0,)),),
        1,
        1,
        BATCH,
        {f"ub_{DIM}_host_user": BATCH},
    )
    model = ej.FunctionModel(
        {"weight": jnp.ones(DIM)},
        lambda params, dense, embeddings: embeddings["user"] @ params["weight"],
    )
    return ej.Trainer(
        model,
        ej.EmbeddingCollection(plan, plan.make_mesh()),
        dense_optimizer=optax.sgd(0.0),
        embedding_optimizer=ej.SGD(0.1),
    )


def batches(steps: int):
    """Batches of which each has other keys, all over 64 bits."""
    for step in range(steps):
        number = np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.uint64)
        keys = (number * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        yield ej.Batch(
            np.zeros((BATCH, 0), np.float32),
            {"user": keys[:, None]},
            np.zeros(BATCH, np.float32),
        )


def main() -> None:
    evicted = sys.argv[1]
    trainer, process = trainer_of(evicted), psutil.Process()
    steps, began, memory = -(-KEYS // BATCH), time.perf_counter(), []
    for result in trainer.iterate_batches(batches(steps)):
        if result.step % EVERY == 0:
            memory.append([result.step * BATCH, process.memory_info().rss])
    record = {
        "evicted": evicted,
        "keys": steps * BATCH,
        "slots": SLOTS,
        "row_bytes": 4 * DIM,
        "seconds": round(time.perf_counter() - began, 1),
        "keys_and_bytes": memory,
    }
    with (HERE / "memory.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(record)


if __name__ == "__main__":
    main()
