"""Trains the two towers and finds their Recall@10; or writes the samples for the peer.

A run that is in results.json already is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path

import jax
import numpy as np
import protocol

from embark_jax.config import reading
from embark_jax.data import Batch, MovieLens100K
from embark_jax.metrics.retrieval import ItemIndex, items_of
from embark_jax.run import experiment
from embark_jax.train.trainer import Trainer

CONFIG = Path(__file__).parents[2] / "configs/experiments/movielens_100k/two_tower.yaml"
ALL = 100_000
ITEM_FEATURES = ("item", "genres", "title_words", "release_year")
Liked = dict[int, list[int]]
"""The films that each user gave 4 stars or more."""


def splits(data: MovieLens100K) -> dict[str, Batch]:
    """Returns all samples of each split."""
    (validation,), (test,) = data.validation_batches(ALL), data.test_batches(ALL)
    train = data.train_batch(0, data.train_samples)
    return {"train": train, "validation": validation, "test": test}


def liked(samples: Batch) -> Liked:
    found: Liked = {}
    users, items = samples.ids["user"][:, 0], samples.ids["item"][:, 0]
    for user, item in np.column_stack([users, items])[samples.labels > 0].tolist():
        found.setdefault(user, []).append(item)
    return found


def recall(places: np.ndarray, users: np.ndarray, known: Liked, wanted: Liked) -> float:
    """Returns the mean Recall@K of users, over those who like something.

    Args:
      places: ``[users, n]`` all items of each user, the best first.
      users: ``[users]`` ids.
      known: items that are left out, as the user is known to like them.
      wanted: items to be found.
    """
    found = []
    for user, items in zip(users.tolist(), places, strict=True):
        if hits := set(wanted.get(user, [])):
            fresh = items[~np.isin(items, known.get(user, []))][: protocol.K]
            found.append(len(hits.intersection(fresh.tolist())) / len(hits))
    return float(np.mean(found))


class Search:
    """All items in the order that a trained model would show them to each user.

    Args:
      samples: all samples, in which each user and each item occurs. The dense features
        of a user are those of their last sample in training.
      batch_size: samples of a batch.
    """

    def __init__(self, samples: dict[str, Batch], batch_size: int):
        self._batch_size = batch_size
        self._items = items_of(samples.values(), "item", ITEM_FEATURES)
        train = samples["train"]
        ids, places = np.unique(train.ids["user"][::-1, 0], return_index=True)
        self.users = ids
        self._users = part(train, len(train.labels) - 1 - places)

    def places(self, trainer: Trainer) -> np.ndarray:
        """Returns ``[users, items]``."""
        items, item_ids = self._vectors(trainer, "items", self._items)
        users, _ = self._vectors(trainer, "users", [self._users])
        index = ItemIndex(item_ids["item"][:, 0], items, trainer.embeddings.mesh)
        found, _ = index.search(users, len(items))
        return found

    def _vectors(self, trainer: Trainer, method: str, parts: list[Batch]):
        batches = [
            part(
                each, np.arange(first, min(first + self._batch_size, len(each.labels)))
            )
            for each in parts
            for first in range(0, len(each.labels), self._batch_size)
        ]
        found = list(trainer.predict(batches, method=method))
        ids = {
            name: np.concatenate([batch.ids[name] for batch, _ in found])
            for name in ("user", "item")
        }
        return np.concatenate([np.asarray(vectors) for _, vectors in found]), ids


def part(samples: Batch, rows: np.ndarray) -> Batch:
    return dataclasses.replace(
        samples,
        dense=samples.dense[rows],
        ids={name: ids[rows] for name, ids in samples.ids.items()},
        labels=samples.labels[rows],
    )


def train(rate: float, temperature: float, seed: int) -> dict[str, float]:
    """Trains a run; Recall@10 of its best epoch."""
    setup = experiment.build(
        reading.load(
            CONFIG,
            [
                f"seed={seed}",
                f"embedding.optimizer.learning_rate={rate}",
                f"dense_optimizer.learning_rate={rate}",
                f"model.temperature={temperature}",
            ],
        )
    )
    data, trainer, size = setup.dataset, setup.trainer(), setup.config.train.batch_size
    assert isinstance(data, MovieLens100K)
    samples = splits(data)
    wanted, both = wanted_items(samples)
    search = Search(samples, size)
    best = {"validation": 0.0, "test": 0.0, "epoch": 0}
    for epoch in itertools.count(1):
        trainer.fit(data, data.train_samples * epoch // size, progress=False)
        places = search.places(trainer)
        on_validation = places, search.users, wanted["train"], wanted["validation"]
        found = recall(*on_validation)
        if found > best["validation"]:
            tested = recall(places, search.users, both, wanted["test"])
            best = {"validation": found, "test": tested, "epoch": epoch}
        if epoch - best["epoch"] >= protocol.PATIENCE or epoch == protocol.MOST_EPOCHS:
            return best
    raise AssertionError


def wanted_items(samples: dict[str, Batch]) -> tuple[dict[str, Liked], Liked]:
    """Returns what is liked in each split, and in training and validation together."""
    wanted = {split: liked(each) for split, each in samples.items()}
    both = {
        user: wanted["train"].get(user, []) + wanted["validation"].get(user, [])
        for user in wanted["train"].keys() | wanted["validation"].keys()
    }
    return wanted, both


def popular(data: MovieLens100K) -> dict[str, float]:
    """Returns the Recall@10 of the films that most users like in training."""
    wanted, both = wanted_items(splits(data))
    items = np.concatenate([*wanted["train"].values()])
    counts = np.bincount(items, minlength=data.table_rows["item"])
    users = np.arange(data.table_rows["user"])
    best = np.tile(np.argsort(-counts, kind="stable"), (len(users), 1))
    return {
        "validation": recall(best, users, wanted["train"], wanted["validation"]),
        "test": recall(best, users, both, wanted["test"]),
    }


def write_samples(data: MovieLens100K) -> None:
    """Writes the liked films of each split, and all films, as RecBole's files."""
    protocol.SAMPLES.mkdir(exist_ok=True)
    stem, header = protocol.SAMPLES / "liked", "user_id:token\titem_id:token"
    for split, samples in splits(data).items():
        pairs = [
            f"{user}\t{item}"
            for user, items in liked(samples).items()
            for item in items
        ]
        Path(f"{stem}.{split}.inter").write_text("\n".join([header, *pairs]) + "\n")
    items = map(str, range(data.table_rows["item"]))
    Path(f"{stem}.item").write_text("\n".join(["item_id:token", *items]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--runs", type=int, help="most runs of this call")
    asked = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(Path(".cache").absolute()))
    if asked.samples:
        write_samples(MovieLens100K())
        return
    if protocol.due("popular"):
        protocol.keep("popular/0/0", popular(MovieLens100K()))
    done = 0
    while (left := protocol.due("two_tower")) and done != asked.runs:
        trial, seed = left[0]
        record = train(**protocol.TRIALS["two_tower"][trial], seed=seed)
        protocol.keep(name := f"two_tower/{trial}/{seed}", record)
        print(name, record, flush=True)
        done += 1


if __name__ == "__main__":
    main()
