"""MovieLens-100k with dynamic tables and raw ids, beside the fixed vocabulary.

Each run adds a line to ``results.jsonl`` beside this.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from raw_movielens import RAW

from embark_jax.config.reading import load
from embark_jax.data import MovieLens100K
from embark_jax.run import experiment

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "configs" / "movielens_100k.yaml"
WAYS = {
    "fixed vocabulary": None,
    "dynamic": {"share": 1.0, "evicted": "host"},
    "half of the slots, host": {"share": 0.5, "evicted": "host"},
    "half of the slots, discard": {"share": 0.5, "evicted": "discard"},
}


def overrides(
    way: dict | None, rows: dict[str, int], seed: int, steps: int
) -> list[str]:
    """Of the config, for a way; a dynamic table begins with slots for 390 keys."""
    found = [f"seed={seed}", f"train.steps={steps}", "train.eval_every=null"]
    if way is None:
        return found
    found.append("data={kind: 'raw_movielens:RawMovieLens'}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=312, help="two epochs")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    rows = MovieLens100K().table_rows
    for seed in given.seeds:
        for name in given.ways:
            found = measure(WAYS[name], rows, seed, given.steps)
            line = json.dumps({"way": name, "seed": seed, "steps": given.steps} | found)
            print(line, flush=True)
            with open(HERE / "results.jsonl", "a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
