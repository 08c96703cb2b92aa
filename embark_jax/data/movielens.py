"""MovieLens-100k as a click problem: did this user give this film 4 stars or more?

The data: F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; its terms
of use: https://grouplens.org/datasets/movielens/100k. It is read in the form that
RecBole gives it (https://recbole.io/docs/user_guide/data/atomic_files.html).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from embark_jax.data.batch import Batch, DataError
from embark_jax.data.description import Description
from embark_jax.data.download import movielens_100k_folder
from embark_jax.data.tsv import TabSeparated
from embark_jax.plans.tables import PADDING_ID, FeatureSpec

USER_HEADER = (
    "user_id:token",
    "age:token",
    "gender:token",
    "occupation:token",
    "zip_code:token",
)
ITEM_HEADER = (
    "item_id:token",
    "movie_title:token_seq",
    "release_year:token",
    "class:token_seq",
)
RATING_HEADER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")

_REMEDY = "`embark data movielens-100k` fetches a good copy"
_SPLIT_SEED = 0
_LIKED_STARS = 4
_TITLE_WORD_MIN_ITEMS = 2  # a word of a single title tells no more than the item's id
_TABLE_ROWS = {
    "user": 943,
    "item": 1682,
    "age": 61,
    "gender": 2,
    "occupation": 21,
    "zip_code": 795,
    "release_year": 73,
    "genres": 19,
    "title_words": 597,
}
_HOTNESS = {"genres": 6, "title_words": 10}


class MovieLens100K:
    """A ``Dataset`` of 100,000 ratings that 943 users gave 1,682 films.

    Features with a single id are user, item, age, gender, occupation, zip_code and
    release_year. Mean-pooled bags are genres, and title_words, the lower-case words
    that occur in more than one title. Each feature reads the table of its own name.
    Dense features are the user's age and the time of the rating, standardized by the
    training samples. The label is 1 from 4 stars on, or there are several labels, each
    with stars of its own. On request, the sequence
    earlier_items reads the table of item: the films that the user rated last before
    this rating, whatever the stars, the latest at the end.

    The ratings are split at random 8:1:1 into training, validation and test samples,
    in the same way for every seed, so that runs with different seeds compare.

    Args:
      folder: has ml-100k.inter, ml-100k.user and ml-100k.item; None takes the folder
        of ``fetch_movielens_100k``.
      seed: determines the order of the training samples, anew in each epoch.
      earlier_items: length of that sequence; 0 leaves the feature out.
      labels: several labels by name, each with the stars from which on it is 1.
      ratings: number of ratings that ml-100k.inter must have: nothing else would show
        that it was cut between two lines.

    Attributes:
      titles: title of each row of table "item".

    Raises:
      DataError: if a file is missing or any row of it breaks a rule; no row is skipped.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        seed: int = 0,
        earlier_items: int = 0,
        labels: Mapping[str, int] = MappingProxyType({}),
        ratings: int = 100_000,
    ):
        folder = movielens_100k_folder() if folder is None else Path(folder)
        users = TabSeparated(folder / "ml-100k.user", USER_HEADER, _REMEDY)
        items = TabSeparated(folder / "ml-100k.item", ITEM_HEADER, _REMEDY)
        rated = TabSeparated(folder / "ml-100k.inter", RATING_HEADER, _REMEDY)
        user_rows, item_rows = users.keys("user_id:token"), items.keys("item_id:token")
        user = rated.lookups("user_id:token", user_rows, users.path)
        item = rated.lookups("item_id:token", item_rows, items.path)
        stars = rated.numbers("rating:float", least=1, most=5)
        age = users.numbers("age:token", least=0, most=150)[user]
        time = rated.numbers("timestamp:float", least=0, most=2**53)
        if len(rated) != ratings:
            raise DataError(
                f"{rated.path}: has {len(rated)} ratings, must have {ratings}; "
                f"{_REMEDY}"
            )
        self._file_name = rated.path.name
        self._seed = seed

        order = np.random.default_rng(_SPLIT_SEED).permutation(ratings)
        self._train, self._validation, self._test = np.split(
            order, [ratings * 8 // 10, ratings * 9 // 10]
        )
        least = np.array(list(labels.values()) or [_LIKED_STARS])
        found = (stars[:, None] >= least).astype(np.float32)
        self._labels = found if labels else found[:, 0]
        dense = np.column_stack([age, time])
        mean, std = dense[self._train].mean(axis=0), dense[self._train].std(axis=0)
        self._dense = ((dense - mean) / np.maximum(std, 1e-6)).astype(np.float32)

        bags = {
            "user": (user, _singles(users.column("user_id:token"))),
            "item": (item, _singles(items.column("item_id:token"))),
            "age": (user, _singles(users.column("age:token"))),
            "gender": (user, _singles(users.column("gender:token"))),
            "occupation": (user, _singles(users.column("occupation:token"))),
            "zip_code": (user, _singles(users.column("zip_code:token"))),
            "release_year": (item, _singles(items.column("release_year:token"))),
            "genres": (item, [g.split() for g in items.column("class:token_seq")]),
            "title_words": (item, _title_words(items.column("movie_title:token_seq"))),
        }
        # For each feature: the user or item of each rating, and the bag of each of
        # them.
        self._bags = {
            name: (owner, _encode(texts)) for name, (owner, texts) in bags.items()
        }
        self.table_rows = {
            name: max(0, int(ids.max())) + 1 for name, (_, ids) in self._bags.items()
        }
        self.features = tuple(
            FeatureSpec(
                name,
                hotness=ids.shape[1],
                pooling="mean" if ids.shape[1] > 1 else "sum",
            )
            for name, (_, ids) in self._bags.items()
        )
        if earlier_items:
            ids = self._bags["item"][1][item, 0]
            sequences = _earlier(user, time, ids, earlier_items)
            self._bags["earlier_items"] = (np.arange(ratings), sequences)
            self.features = (*self.features, _sequence(earlier_items))
        self.dense_features = dense.shape[1]
        # Ids follow the order of the file, in which each item occurs once.
        self.titles = tuple(items.column("movie_title:token_seq"))
        self.train_samples = len(self._train)
        # An epoch is shuffled once, not at each of its batches.
        self._epoch = functools.lru_cache(maxsize=1)(self._shuffled)

    @staticmethod
    def described(earlier_items: int = 0) -> Description:
        """Describes the data set, which is the same everywhere, without its files."""
        features = [
            FeatureSpec(
                name,
                hotness=_HOTNESS.get(name, 1),
                pooling="mean" if name in _HOTNESS else "sum",
            )
            for name in _TABLE_ROWS
        ]
        if earlier_items:
            features.append(_sequence(earlier_items))
        return Description(_TABLE_ROWS, tuple(features), dense_features=2)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of training step ``step`` (from 0); may span epochs."""
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, places = np.divmod(positions, self.train_samples)
        parts = [self._epoch(e)[places[epochs == e]] for e in np.unique(epochs)]
        return self._batch(np.concatenate(parts))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole validation set once; the last batch may be shorter."""
        return self._in_order(self._validation, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole test set once; the last batch may be shorter."""
        return self._in_order(self._test, batch_size)

    def bayes_auc(self) -> None:
        """Returns None: it is not known for real data."""
        return None

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._train)

    def _in_order(self, rows: np.ndarray, batch_size: int) -> Iterator[Batch]:
        for start in range(0, len(rows), batch_size):
            yield self._batch(rows[start : start + batch_size])

    def _batch(self, rows: np.ndarray) -> Batch:
        """The samples of these rows of ml-100k.inter."""
        return Batch(
            dense=self._dense[rows],
            ids={name: ids[owner[rows]] for name, (owner, ids) in self._bags.items()},
            labels=self._labels[rows],
            locate=lambda i: f"{self._file_name}, line {rows[i] + 2}",
        )


def _sequence(length: int) -> FeatureSpec:
    return FeatureSpec("earlier_items", "item", length, "none")


def _singles(texts: Sequence[str]) -> list[list[str]]:
    return [[text] for text in texts]


def _title_words(titles: Sequence[str]) -> list[list[str]]:
    """The words of each title that occur in enough titles."""
    words = [re.findall(r"[\w']+", title.lower()) for title in titles]
    counts = Counter(word for title in words for word in set(title))
    return [[w for w in title if counts[w] >= _TITLE_WORD_MIN_ITEMS] for title in words]


def _encode(bags: Sequence[Sequence[str]]) -> np.ndarray:
    """Numbers values in order of first appearance: int32 ``[bags, hotness]`` ids,
    padded with -1."""
    vocabulary: dict[str, int] = {}
    ids = np.full((len(bags), max(1, *map(len, bags))), PADDING_ID, np.int32)
    for row, bag in enumerate(bags):
        for place, text in enumerate(bag):
            ids[row, place] = vocabulary.setdefault(text, len(vocabulary))
    return ids


def _earlier(
    user: np.ndarray, time: np.ndarray, ids: np.ndarray, length: int
) -> np.ndarray:
    """For each rating, the ids that the user rated last at an earlier time, the latest
    at the end: int32 ``[ratings, length]``, padded with -1 in front."""
    earlier = np.full((len(ids), length), PADDING_ID, np.int32)
    order = np.lexsort([time, user])
    for mine in np.split(order, np.flatnonzero(np.diff(user[order])) + 1):
        before = np.searchsorted(time[mine], time[mine])
        places = before[:, None] + np.arange(-length, 0)
        earlier[mine] = np.where(places >= 0, ids[mine][places], PADDING_ID)
    return earlier
