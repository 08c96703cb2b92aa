"""Recall@20 of two towers on Gowalla's check-ins, by the split of the LightGCN paper.

Each call trains with one seed, and looks at the test samples once, at the end; or, when
all seeds are in gowalla.json, prints their mean. Nothing was tuned.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import numpy as np
import optax
import scipy.sparse
from embark_kernels import LazyAdam
from flax import nnx

import embark_jax as ej
from embark_jax.data import Batch
from embark_jax.metrics.retrieval import ItemIndex
from embark_jax.models import TwoTower

RESULTS = Path(__file__).parent / "gowalla.json"
USERS, ITEMS, TRAIN, TEST = 29_858, 40_981, 810_128, 217_242
"""Sizes that the papers give."""
K, DIM = 20, 64
BATCH, RATE, TEMPERATURE, EPOCHS = 512, 3e-3, 0.1, 10
SEEDS = (0, 1, 2)
SEARCHED = 1024
"""Users that are searched for at a time."""


class CheckIns:
    """A ``Dataset``: ``[samples, 2]`` pairs of a user and a place."""

    features = (ej.FeatureSpec("user"), ej.FeatureSpec("item"))
    dense_features = 0

    def __init__(self, pairs: np.ndarray, seed: int):
        self._pairs, self._seed, self._epoch = pairs, seed, -1
        self.steps_an_epoch = len(pairs) // BATCH

    def train_batch(self, step: int, batch_size: int) -> Batch:
        epoch, place = divmod(step, self.steps_an_epoch)
        if epoch != self._epoch:
            dice = np.random.default_rng([self._seed, epoch])
            self._order, self._epoch = dice.permutation(len(self._pairs)), epoch
        rows = self._order[place * batch_size : (place + 1) * batch_size]
        return samples(*self._pairs[rows].T)


def samples(users: np.ndarray, items: np.ndarray) -> Batch:
    """Returns a batch of positive samples."""
    ids = {"user": users[:, None], "item": items[:, None]}
    dense = np.zeros((len(users), 0), np.float32)
    return Batch(dense, ids, np.ones(len(users), np.float32))


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ``[samples, 2]`` int32 pairs for training and for the test."""
    graph = scipy.sparse.load_npz(folder / "s_adj_mat.npz").tocoo()
    of_users = graph.row < USERS  # the other half is its mirror image
    train = np.column_stack([graph.row[of_users], graph.col[of_users] - USERS])
    lines = (folder / "test.txt").read_text().splitlines()
    test = [(int(u), int(i)) for u, *items in map(str.split, lines) for i in items]
    found = train.astype(np.int32), np.array(test, np.int32)
    assert (len(train), len(test)) == (TRAIN, TEST), "not the published numbers"
    assert all((pairs.max(axis=0) < (USERS, ITEMS)).all() for pairs in found)
    return found


def vectors(trainer: ej.Trainer, method: str, count: int) -> np.ndarray:
    """Returns the vectors of all users or of all items."""
    everyone, nobody = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    both = (everyone, nobody) if method == "users" else (nobody, everyone)
    batches = [
        samples(*(each[first : first + BATCH] for each in both))
        for first in range(0, count, BATCH)
    ]
    found = trainer.predict(batches, method=method)
    return np.concatenate([np.asarray(each) for _, each in found])


def metrics(
    trainer: ej.Trainer, known: np.ndarray, wanted: np.ndarray
) -> tuple[float, float]:
    """Returns mean Recall@K and NDCG@K of the users with wanted items, which are looked
    for among all items but those known."""
    users = vectors(trainer, "users", USERS)
    items = vectors(trainer, "items", ITEMS)
    index = ItemIndex(np.arange(ITEMS), items, trainer.embeddings.mesh)
    known_of, wanted_of = lists(known), lists(wanted)
    gains = 1 / np.log2(np.arange(K) + 2)
    # Users with as many known items, up to a power of two, ask for as many.
    sizes = np.array([max(1, len(each) - 1).bit_length() for each in known_of])
    recalls, ndcgs = [], []
    for size in np.unique(sizes):
        mine = np.flatnonzero((sizes == size) & [bool(len(w)) for w in wanted_of])
        for first in range(0, len(mine), SEARCHED):
            some = mine[first : first + SEARCHED]
            asked = np.zeros((SEARCHED, DIM), np.float32)
            asked[: len(some)] = users[some]
            places, _ = index.search(asked, min(ITEMS, K + 2 ** int(size)))
            for user, found in zip(some, places, strict=False):
                best = found[~np.isin(found, known_of[user])][:K]
                hits = np.isin(best, wanted_of[user])
                recalls.append(hits.sum() / len(wanted_of[user]))
                ideal = gains[: len(wanted_of[user])].sum()
                ndcgs.append(gains[hits].sum() / ideal)
    return float(np.mean(recalls)), float(np.mean(ndcgs))


def lists(pairs: np.ndarray) -> list[np.ndarray]:
    """Returns the items of each user."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    ends = np.searchsorted(pairs[:, 0], np.arange(1, USERS))
    return np.split(pairs[:, 1], ends)


def make_trainer(seed: int) -> ej.Trainer:
    tables = [
        ej.TableSpec(name, rows, DIM, init_scale=0.1, initializer="normal")
        for name, rows in (("user", USERS), ("item", ITEMS))
    ]
    plan = ej.plan(tables, CheckIns.features, ej.fleets.this_machine(), BATCH)
    embeddings = ej.EmbeddingCollection(plan, plan.make_mesh())
    model = TwoTower(
        embeddings.output_shapes,
        0,
        ["item"],
        (DIM,),
        TEMPERATURE,
        rngs=nnx.Rngs(seed),
    )
    return ej.Trainer(
        model,
        embeddings,
        dense_optimizer=optax.adam(RATE),
        embedding_optimizer=LazyAdam(RATE),
        seed=seed,
    )


def train(pairs: np.ndarray, test: np.ndarray, seed: int) -> dict[str, float]:
    """Trains, then looks at the test samples once."""
    data, trainer = CheckIns(pairs, seed), make_trainer(seed)
    start, steps = time.perf_counter(), EPOCHS * data.steps_an_epoch
    trainer.fit(data, steps, progress=False)
    rate = steps * BATCH / (time.perf_counter() - start)
    print(f"{rate:.0f} samples/s", flush=True)
    recall, ndcg = metrics(trainer, pairs, test)
    return {"recall": recall, "ndcg": ndcg}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="data/gowalla of LightGCN-PyTorch")
    asked = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", str(Path(".cache").absolute()))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if due := [str(seed) for seed in SEEDS if str(seed) not in results]:
        results[due[0]] = record = train(*read(asked.folder), seed=int(due[0]))
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(due[0], record)
        return
    for key in ("recall", "ndcg"):
        found = [each[key] for each in results.values()]
        spread = max(found) - min(found)
        print(f"{key}@{K} {statistics.mean(found):.4f} ({spread:.4f})")


if __name__ == "__main__":
    main()
