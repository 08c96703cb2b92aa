"""Training with tables beyond device memory, beside the same model all in memory.

Each way runs in a process of its own, in turn with the others, and every way gets the
same batches. Writes ``results.json`` beside itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import output_of

HERE = Path(__file__).resolve().parent
TABLES, HOTNESS, DIM, DENSE, BATCH = 8, 3, 128, 13, 2048
ZIPF = 1.1
BOTTOM, TOP = (512, 256, DIM), (512, 256, 1)
WAYS = {
    "in memory": "device",
    "host": "host",
    "disk": "disk",
}


def draw_ids(rng: np.random.Generator, rows: int, shape: tuple) -> np.ndarray:
    """Ids by a Zipf law, hot ones strewn over the table."""
    power = 1 - ZIPF
    rank = (1 + rng.random(shape) * (rows**power - 1)) ** (1 / power)
    return (rank.astype(np.int64) * 7919 % rows).astype(np.int32)


def batches(rows: int, steps: range) -> Iterator[Any]:
    """The same for all ways. ``rows`` is prime to 7919: no ids fall together."""
    from embark_jax.data import Batch

    for step in steps:
        rng = np.random.default_rng([step])
        ids = {f"t{i}": draw_ids(rng, rows, (BATCH, HOTNESS)) for i in range(TABLES)}
        dense = rng.standard_normal((BATCH, DENSE), np.float32)
        labels = (rng.random(BATCH) < 0.3).astype(np.float32)
        yield Batch(dense=dense, ids=ids, labels=labels)


def make_trainer(rows: int, share: float, tier: str, scratch: Path) -> Any:
    import optax
    from embark_kernels import RowwiseAdagrad
    from flax import nnx

    from embark_jax import models
    from embark_jax.embedding.collection import EmbeddingCollection
    from embark_jax.planner import plan
    from embark_jax.plans.forced import ForcedPlacement
    from embark_jax.plans.tables import FeatureSpec, TableSpec
    from embark_jax.train.trainer import Trainer

    slots = None if tier == "device" else int(rows * share)
    names = [f"t{i}" for i in range(TABLES)]
    planned = plan(
        [TableSpec(n, rows, DIM, tier=tier, slots=slots) for n in names],
        [FeatureSpec(n, hotness=HOTNESS) for n in names],
        "this-machine",
        BATCH,
        forced={n: ForcedPlacement("ub") for n in names},
        zipf_exponent=ZIPF,
    )
    embeddings = EmbeddingCollection(planned, planned.make_mesh())
    rngs = nnx.Rngs(0)
    return Trainer(
        models.DLRM(embeddings.output_shapes, DENSE, BOTTOM, TOP, rngs=rngs),
        embeddings,
        dense_optimizer=optax.sgd(0.1),
        embedding_optimizer=RowwiseAdagrad(0.1),
        scratch=scratch,
    )


def measure(rows: int, share: float, tier: str, given: argparse.Namespace) -> dict:
    """Samples/s of the steps after those to warm up, and what the cache did in them."""
    began = time.perf_counter()
    trainer = make_trainer(rows, share, tier, given.scratch)
    made_s = time.perf_counter() - began
    to_warm, end = batches(rows, range(given.warm)), given.warm + given.steps
    timed = list(batches(rows, range(given.warm, end)))
    losses = [r.loss for r in trainer.iterate_batches(to_warm)]
    if trainer.cached is not None:
        trainer.cached.figures()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    began, waited = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    losses += [r.loss for r in trainer.iterate_batches(timed)]
    took_s, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "samples_per_s": given.steps * BATCH / took_s,
        "cpu_s_a_step": (used.ru_utime + used.ru_stime) / given.steps
        - (waited.ru_utime + waited.ru_stime) / given.steps,
        "made_s": made_s,
        "pages_from_disk_a_step": (used.ru_majflt - faults) / given.steps,
        "peak_gb": used.ru_maxrss * 1024 / 1e9,
        "last_loss": losses[-1],
    }
    if trainer.cached is not None:
        found |= trainer.cached.figures()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of each table")
    parser.add_argument("--share", type=float, default=0.1, help="of rows in slots")
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=WAYS, help="in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.rows, given.share, WAYS[given.one], given)))
        return
    out = output_of(parser, given, HERE / "results.json", free=["scratch"])
    runs: dict[str, list[dict]] = {name: [] for name in given.ways}
    for _ in range(given.rounds):
        for name in given.ways:
            module = ["-m", "experiments.beyond_memory.run", *sys.argv[1:]]
            command = [sys.executable, *module, "--one", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, runs[name][-1], flush=True)
    settings = vars(given) | {
        "scratch": None,
        "out": out.name,
        "batch": BATCH,
        "dim": DIM,
    }
    row_bytes = 4 * (DIM + 1)
    settings |= {"tables": TABLES, "hotness": HOTNESS, "zipf": ZIPF}
    settings["gigabytes"] = TABLES * given.rows * row_bytes / 1e9
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]}
        for name, each in runs.items()
    }

    result = {"settings": settings, "medians": medians, "runs": runs}
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
