"""Steps with a dynamic table beside those with a fixed one, on the same batches, of
which a share of the ids is new.

Run with the checkout of another version as PYTHONPATH, it measures that one, too. Adds
lines to ``speed.jsonl`` beside this.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax.numpy as jnp
import numpy as np
import optax

import embark_jax as ej
from embark_jax.plans.storage import Placement

HERE = Path(__file__).resolve().parent
BATCH, HOTNESS, KNOWN, ROWS, DIM = 8192, 4, 2**18, 2**20, 32
WARM, STEPS, REPEATS = 40, 15, 5
KINDS = ("fixed", "cached", "dynamic")
MESHES = (((1, 1), "ub"), ((2, 4), "ub"), ((2, 4), "rb"))
SHARES_NEW = (0, 0.01, 0.1)


def trainer_of(kind: str, mesh: tuple[int, int], cluster: str) -> ej.Trainer:
    """Of one table, which has all its slots from the start."""
    if kind == "fixed":
        table = ej.TableSpec("user", ROWS, DIM)
    elif kind == "cached":
        table = ej.TableSpec("user", ROWS, DIM, tier="host", slots=ROWS)
    else:
        table = ej.TableSpec.dynamic("user", DIM, ROWS, ROWS)
    feature = ej.FeatureSpec("user", hotness=HOTNESS)
    devices = mesh[0] * mesh[1]
    placement = Placement(table, cluster, devices, 1, tuple(range(devices)))
    name = (
        f"{cluster}_{DIM}"
        + {"fixed": "", "cached": "_host", "dynamic": "_host_user"}[kind]
    )
    capacity = 2 * BATCH * HOTNESS // devices**2 if devices > 1 else BATCH * HOTNESS
    plan = ej.Plan((feature,), (placement,), *mesh, BATCH, {name: capacity})
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


class Ids:
    """Ids by Zipf's law (exponent 1.1) of those that are known; of each batch a share
    is replaced by ids that never came before."""

    def __init__(self):
        self._rng = np.random.default_rng(0)
        self._next = KNOWN

    def draw(self, share_new: float) -> np.ndarray:
        ids = self._rng.zipf(1.1, BATCH * HOTNESS) % KNOWN
        new = self._rng.choice(len(ids), round(share_new * len(ids)), replace=False)
        ids[new] = self._next + np.arange(len(new))
        self._next += len(new)
        return ids.reshape(BATCH, HOTNESS)


def batches(kind: str, all_ids: list[np.ndarray]) -> Iterator[ej.Batch]:
    """Ids as row numbers, or spread over 64 bits."""
    for ids in all_ids:
        keys = ids * 2**40 if kind == "dynamic" else ids
        labels = (ids[:, 0] % 2).astype(np.float32)
        yield ej.Batch(np.zeros((BATCH, 0), np.float32), {"user": keys}, labels)


def main() -> None:
    version = sys.argv[1]
    for mesh, cluster in MESHES:
        trainers = {kind: trainer_of(kind, mesh, cluster) for kind in KINDS}
        ids = Ids()
        first = np.arange(KNOWN).reshape(-1, BATCH, HOTNESS)
        warm = [*first, *(ids.draw(0.01) for _ in range(WARM))]
        for kind, trainer in trainers.items():
            trainer.train(batches(kind, warm))
        for share_new in SHARES_NEW:
            step_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
            cpu_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(REPEATS):
                drawn = [ids.draw(share_new) for _ in range(STEPS)]
                for kind, trainer in trainers.items():
                    some = list(batches(kind, drawn))
                    began, began_cpu = time.perf_counter(), time.process_time()
                    trainer.train(some)
                    step_ms[kind].append(1e3 * (time.perf_counter() - began) / STEPS)
                    cpu_ms[kind].append(1e3 * (time.process_time() - began_cpu) / STEPS)
            record = {
                "version": version,
                "mesh": mesh,
                "cluster": cluster,
                "new": share_new,
                "step_ms": {kind: round(min(ms), 2) for kind, ms in step_ms.items()},
                "cpu_ms": {kind: round(min(ms), 2) for kind, ms in cpu_ms.items()},
                "over_fixed": {
                    kind: round(float(np.median(np.divide(ms, step_ms["fixed"]))), 2)
                    for kind, ms in step_ms.items()
                },
            }
            with (HERE / "speed.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)


if __name__ == "__main__":
    main()
