"""Hit rates that the planner predicts beside those of replayed batches; see README.md.

embark data movielens-100k
python experiments/hit_rates/run.py [--criteo FILE]
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.cache.key_index import empty_index, resolve
from embark_jax.cache.leaving import SlotRules
from embark_jax.data import MovieLens100K
from embark_jax.plans.options import Evict
from embark_jax.statistics.histogram import Histogram
from embark_jax.statistics.misses import missed_rows
from embark_jax.statistics.skew import Skew, Zipf

RESULTS = Path(__file__).with_name("results.json")
BATCHES_OF_SLOTS = (2, 4, 8, 16)
"""Slots, as a multiple of the rows of a batch."""
WARM_BATCHES, BATCHES = 4000, 200
LRU_WARM_BATCHES = 400
SEED = 0


def replayed(
    batches: Iterator[np.ndarray], slots: int, evict: Evict, most_ids: int
) -> float:
    """Share of a batch's rows that the key index of one device has in slots."""
    index = empty_index(slots, 1)
    rules = SlotRules(evict=evict)
    step = jax.jit(functools.partial(resolve, rules=rules), donate_argnums=0)
    missed = requested = 0
    warm = LRU_WARM_BATCHES if evict == "lru" else WARM_BATCHES
    for number in range(warm + BATCHES):
        rows = np.unique(next(batches))
        keys = np.zeros((most_ids, 1), np.uint32)
        keys[: len(rows), 0] = rows
        resolved = step(index, jnp.asarray(keys), jnp.arange(most_ids) < len(rows))
        index = resolved.index
        if number >= warm:
            missed += int(resolved.moves.count[0])
            requested += len(rows)
    return 1 - missed / requested


def drawn(rows: int, exponent: float, ids: int) -> Iterator[np.ndarray]:
    """Batches of ids that a power law draws."""
    rng = np.random.default_rng(SEED)
    cumulative = np.cumsum(np.arange(1, rows + 1) ** -exponent)
    while True:
        drawn_at = rng.random(ids) * cumulative[-1]
        yield np.minimum(np.searchsorted(cumulative, drawn_at), rows - 1)


def shuffled(samples: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of the rows of these samples, in another order each epoch."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(len(samples))
        for first in range(0, len(samples) - batch_size + 1, batch_size):
            rows = samples[order[first : first + batch_size]].reshape(-1)
            yield rows[rows >= 0]


def resampled(samples: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of the rows of samples drawn at random from a few: a data set as large as
    a run has others in each batch."""
    rng = np.random.default_rng(SEED)
    while True:
        rows = samples[rng.integers(0, len(samples), batch_size)].reshape(-1)
        yield rows[rows >= 0]


def cases(criteo: Path | None) -> Iterator[tuple[str, int, int, Skew, Callable]]:
    """Name, rows of the table, ids of a batch, skew and batches."""
    for exponent in (0.8, 1.05, 1.2):
        rows, ids = 100_000, 2048
        batches = functools.partial(drawn, rows, exponent, ids)
        yield f"Zipf {exponent}, 100,000 rows", rows, ids, Zipf(exponent), batches
    data = MovieLens100K()
    train = data.train_batch(0, data.train_samples)
    columns = {
        f"MovieLens-100k, {feature.name}": train.ids[feature.name]
        for feature in data.features
        if feature.name in ("user", "item", "zip")
    }
    sizes = dict.fromkeys(columns, 128)
    if criteo is not None:
        with criteo.open() as file:
            records = list(csv.DictReader(file))
        for name in ("C3", "C4", "C16"):
            values = np.array([record[name] for record in records])
            _, numbers = np.unique(values, return_inverse=True)
            columns[f"Criteo sample, {name}"] = numbers[:, None]
            sizes[f"Criteo sample, {name}"] = 64
    for name, samples in columns.items():
        ids, counts = np.unique(samples[samples >= 0], return_counts=True)
        skew = Histogram.from_counts(ids, counts)
        order = resampled if "sample" in name else shuffled
        batches = functools.partial(order, samples, sizes[name])
        mean_ids = round(sizes[name] * counts.sum() / len(samples))
        yield name, int(ids.max()) + 1, mean_ids, skew, batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--criteo", type=Path)
    results: list[dict[str, Any]] = []
    for name, rows, ids, skew, batches in cases(parser.parse_args().criteo):
        unique = skew.expected_unique(rows, float(ids))
        for times in BATCHES_OF_SLOTS:
            slots = int(times * unique)
            if slots >= 0.9 * rows:
                break
            for evict in get_args(Evict):
                predicted = 1 - missed_rows(skew, rows, slots, ids, evict) / unique
                most_ids = 2 ** int(np.ceil(np.log2(2 * ids)))
                measured = replayed(batches(), slots, evict, most_ids)
                results.append(
                    {
                        "batches": name,
                        "rows": rows,
                        "ids": ids,
                        "slots": slots,
                        "slots_in_batches": times,
                        "evict": evict,
                        "predicted": round(predicted, 4),
                        "measured": round(measured, 4),
                    }
                )
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(
                    f"| {name} | {times} | {slots:,} | {evict} | {predicted:.1%} | "
                    f"{measured:.1%} | {100 * (predicted - measured):+.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
