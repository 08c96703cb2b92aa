"""Steps with a dynamic table beside those with a fixed one, on the same batches.

Run with the checkout of another version as PYTHONPATH, it measures that one, too. Adds
lines to ``speed.jsonl`` beside this.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax.numpy as jnp
import numpy as np
import optax

import embark_jax as ej
from embark_jax.plans.storage import Placement

HERE = Path(__file__).resolve().parent
BATCH, HOTNESS, ROWS, DIM = 8192, 4, 2**18, 32
WARM, STEPS, REPEATS = 40, 30, 3


def trainer_of(kind: str, devices: int, cluster: str) -> ej.Trainer:
    """Of one table, which has all its slots from the start."""
    if kind == "fixed":
        table = ej.TableSpec("user", ROWS, DIM)
    elif kind == "cached":
        table = ej.TableSpec("user", ROWS, DIM, tier="host", slots=ROWS)
    else:
        table = ej.TableSpec.dynamic("user", DIM, 2 * ROWS, 2 * ROWS)
    feature = ej.FeatureSpec("user", hotness=HOTNESS)
    placement = Placement(table, cluster, devices, 1, tuple(range(devices)))
    name = (
        f"{cluster}_{DIM}"
        + {"fixed": "", "cached": "_host", "dynamic": "_host_user"}[kind]
    )
    capacity = 2 * BATCH * HOTNESS // devices**2 if devices > 1 else BATCH * HOTNESS
    plan = ej.Plan((feature,), (placement,), 1, devices, BATCH, {name: capacity})
    model = ej.FunctionModel(
        {"weight": jnp.ones(DIM)},
        lambda params, dense, embeddings: embeddings["user"] @ params["weight"],
    )
    return ej.Trainer(
        model,
        ej.EmbeddingCollection(plan, plan.make_mesh()),
        dense_optimizer=optax.sgd(0.0),
        embedding_optimizer=ej.RowwiseAdagrad(0.1),
    )


def batches(kind: str, count: int, seed: int):
    """Ids of Zipf's law (exponent 1.1); as row numbers, or spread over 64 bits."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = rng.zipf(1.1, (BATCH, HOTNESS)) % ROWS
        if kind == "dynamic":
            ids = ids * 2**40  # as both versions take them
        labels = rng.integers(0, 2, BATCH).astype(np.float32)
        yield ej.Batch(np.zeros((BATCH, 0), np.float32), {"user": ids}, labels)


def main() -> None:
    version = sys.argv[1]
    for devices, cluster in ((1, "ub"), (2, "ub"), (2, "rb")):
        kinds = ("fixed", "cached", "dynamic")
        trainers = {kind: trainer_of(kind, devices, cluster) for kind in kinds}
        for kind, trainer in trainers.items():
            trainer.train(batches(kind, WARM, 0))
        step_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
        host_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(REPEATS):
            for kind, trainer in trainers.items():
                known = list(batches(kind, STEPS, 0))  # keys that were met before
                checked = [trainer.check(batch) for batch in known]
                began = time.perf_counter()
                for batch in checked:
                    trainer._placing.put(batch)
                host_ms[kind].append(1e3 * (time.perf_counter() - began) / STEPS)
                began = time.perf_counter()
                trainer.train(known)
                step_ms[kind].append(1e3 * (time.perf_counter() - began) / STEPS)
        record = {
            "version": version,
            "devices": devices,
            "cluster": cluster,
            "step_ms": {kind: round(min(ms), 2) for kind, ms in step_ms.items()},
            "put_ms": {kind: round(min(ms), 2) for kind, ms in host_ms.items()},
        }
        with (HERE / "speed.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(record, flush=True)


if __name__ == "__main__":
    main()
