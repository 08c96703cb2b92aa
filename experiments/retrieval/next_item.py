"""Mean test metrics of the next-item runs, beside two models that count.

The folders of the runs are its arguments; README.md has the commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from embark_jax.data.movielens import movielens_100k_next
from embark_jax.metrics.retrieval import at_k


def ranks_by_counts() -> dict[str, np.ndarray]:
    """Returns ranks of the test films by the number of users who saw a film, and by the
    number of times that it came after the film before, equal ones by the former."""
    data = movielens_100k_next(length=1)
    films = data.table_rows["item"]
    train = data.train_batch(0, data.train_samples).ids
    popular = np.bincount(train["item"][:, 0], minlength=films).astype(float)
    pairs = np.zeros((films, films))
    np.add.at(pairs, (train["earlier_items"][:, 0], train["item"][:, 0]), 1)
    (test,) = data.test_batches(2**20)
    items = test.ids["item"][:, 0]
    chained = pairs[test.ids["earlier_items"][:, 0]] + popular / 1e6
    scores = {"most popular films": np.tile(popular, (len(items), 1)), "chain": chained}
    is_ahead = np.arange(films)[None] < items[:, None]  # of its equals
    ranks = {}
    for name, x in scores.items():
        own = np.take_along_axis(x, items[:, None], axis=1)
        ranks[name] = np.sum((x > own) | ((x == own) & is_ahead), axis=1)
    return ranks


def main() -> None:
    for name, ranks in ranks_by_counts().items():
        print(name, at_k(ranks, (10,)))
    finals = {}
    for folder in map(Path, sys.argv[1:]):
        *_, last = (folder / "metrics.jsonl").read_text().splitlines()
        finals.setdefault(folder.name.rpartition("_")[0], []).append(json.loads(last))
    for name, records in finals.items():
        for metric in ("test_hr@10", "test_ndcg@10"):
            values = [record[metric] for record in records]
            spread = max(values) - min(values)
            print(f"{name} {metric} {np.mean(values):.4f} ({spread:.4f})")


if __name__ == "__main__":
    main()
