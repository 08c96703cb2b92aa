"""Dynamic tables: as accurate as a fixed vocabulary, and how fast?

    python experiments/dynamic_tables/run.py accuracy
    python experiments/dynamic_tables/run.py speed

"accuracy" trains MovieLens-100k with dynamic tables and raw ids, and with the fixed
vocabulary. "speed" times steps with a dynamic table beside those with a fixed one, on
the same batches, of which a share of the ids is new. Both add lines to a file beside
this.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax.numpy as jnp
import numpy as np
import optax

import embark_jax as ej
from embark_jax.config.reading import load
from embark_jax.data import Batch, MovieLens100K
from embark_jax.data.hashing import splitmix64
from embark_jax.plans.options import Cluster
from embark_jax.plans.storage import Placement
from embark_jax.run import experiment

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "configs" / "movielens_100k.yaml"
RAW = ("user", "item", "zip_code")
"""Tables whose ids are raw: those of many rows with an id a sample."""
WAYS = {
    "fixed vocabulary": None,
    "dynamic": {"share": 1.0, "evicted": "host"},
    "half of the slots, host": {"share": 0.5, "evicted": "host"},
    "half of the slots, discard": {"share": 0.5, "evicted": "discard"},
}

BATCH, HOTNESS, KNOWN, ROWS, DIM = 8192, 4, 2**18, 2**20, 32
WARM, STEPS, REPEATS = 40, 15, 5
KINDS = ("fixed", "dynamic")
MESHES: tuple[tuple[tuple[int, int], Cluster], ...] = (
    ((1, 1), "ub"),
    ((2, 4), "ub"),
    ((2, 4), "rb"),
)
SHARES_NEW = (0, 0.01, 0.1)


class RawMovieLens(MovieLens100K):
    """The same samples; ids of three tables are hashed, which is one to one here.

    Args:
      seed: orders the training samples.
    """

    def __init__(self, *, seed: int):
        super().__init__(seed=seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return _raw(super().train_batch(step, batch_size))

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return map(_raw, super().test_batches(batch_size))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        return map(_raw, super().validation_batches(batch_size))


def _raw(batch: Batch) -> Batch:
    hashed = {
        name: (splitmix64(ids.astype(np.uint64) + np.uint64(1)) >> np.uint64(1)).astype(
            np.int64
        )
        for name, ids in batch.ids.items()
        if name in RAW
    }
    return dataclasses.replace(batch, ids={**batch.ids, **hashed})


def overrides(
    way: dict | None, rows: dict[str, int], seed: int, steps: int
) -> list[str]:
    """Of the config, for a way; a dynamic table begins with slots for 390 keys."""
    found = [f"seed={seed}", f"train.steps={steps}", "train.eval_every=null"]
    if way is None:
        return found
    found.append("data={kind: 'run:RawMovieLens'}")
    for name in RAW:
        table = {
            "slots": 390,
            "max_slots": int(way["share"] * rows[name]),
            "evicted": way["evicted"],
            "init_scale": rows[name] ** -0.5,
            "cluster": "ub",
        }
        found += [f"embedding.tables.{name}={json.dumps(table)}"]
    return found


def measure(way: dict | None, rows: dict[str, int], seed: int, steps: int) -> dict:
    """Test metrics, and what became of the tables."""
    setup = experiment.build(load(CONFIG, overrides(way, rows, seed, steps)))
    trainer, began = setup.trainer(), time.perf_counter()
    trainer.fit(setup.training_data, setup.steps, progress=False)
    seconds = time.perf_counter() - began
    batches = setup.dataset.test_batches(setup.plan.batch_size)
    metrics = trainer.evaluate(batches, setup.checker())
    found = {"auc": metrics.auc, "log_loss": metrics.log_loss, "train_s": seconds}
    if trainer.cached is not None:
        found |= trainer.cached.figures() | {"recompilations": trainer.recompilations}
        tables = trainer.embeddings.plan.tables
        found |= {f"rows/{t.name}": t.rows for t in tables if t.is_dynamic}
        found |= {f"slots/{t.name}": t.slots for t in tables if t.is_dynamic}
    return found


def accuracy(seeds: list[int], steps: int) -> None:
    rows = MovieLens100K().table_rows
    for seed in seeds:
        for name, way in WAYS.items():
            found = measure(way, rows, seed, steps)
            keep({"way": name, "seed": seed, "steps": steps} | found, "results.jsonl")


def keep(record: dict, file: str) -> None:
    line = json.dumps(record)
    print(line, flush=True)
    with (HERE / file).open("a") as out:
        out.write(line + "\n")


def trainer_of(kind: str, mesh: tuple[int, int], cluster: Cluster) -> ej.Trainer:
    """Of one table, which has all its slots from the start."""
    if kind == "fixed":
        table = ej.TableSpec("user", ROWS, DIM)
    else:
        table = ej.TableSpec.dynamic("user", DIM, ROWS, ROWS)
    feature = ej.FeatureSpec("user", hotness=HOTNESS)
    devices = mesh[0] * mesh[1]
    placement = Placement(table, cluster, devices, 1, tuple(range(devices)))
    name = f"{cluster}_{DIM}" + ("_host_user" if kind == "dynamic" else "")
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


def batches(kind: str, all_ids: list[np.ndarray]) -> Iterator[Batch]:
    """Ids as row numbers, or spread over 64 bits."""
    for ids in all_ids:
        keys = ids * 2**40 if kind == "dynamic" else ids
        labels = (ids[:, 0] % 2).astype(np.float32)
        yield Batch(np.zeros((BATCH, 0), np.float32), {"user": keys}, labels)


def speed(repeats: int) -> None:
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
            for _ in range(repeats):
                drawn = [ids.draw(share_new) for _ in range(STEPS)]
                for kind, trainer in trainers.items():
                    some = list(batches(kind, drawn))
                    began, began_cpu = time.perf_counter(), time.process_time()
                    trainer.train(some)
                    step_ms[kind].append(1e3 * (time.perf_counter() - began) / STEPS)
                    cpu_ms[kind].append(1e3 * (time.process_time() - began_cpu) / STEPS)
            over = np.divide(step_ms["dynamic"], step_ms["fixed"])
            record = {
                "mesh": mesh,
                "cluster": cluster,
                "new": share_new,
                "step_ms": {kind: round(min(ms), 2) for kind, ms in step_ms.items()},
                "cpu_ms": {kind: round(min(ms), 2) for kind, ms in cpu_ms.items()},
                "over_fixed": round(float(np.median(over)), 2),
            }
            keep(record, "speed.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("accuracy", "speed"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=312, help="two epochs")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    if given.what == "speed":
        speed(given.repeats)
    else:
        accuracy(given.seeds, given.steps)


if __name__ == "__main__":
    main()
