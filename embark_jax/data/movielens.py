"""MovieLens-100k in memory: did this user give this film 4 stars or more?

F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; terms of use:
https://grouplens.org/datasets/movielens/100k.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from embark_jax.config import EmbeddingConfig, MovieLens100KConfig
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import Dataset, InMemory
from embark_jax.data.download import movielens_100k_folder
from embark_jax.data.leave_one_out import LeaveOneOut
from embark_jax.data.source import Description
from embark_jax.plans.tables import FeatureSpec

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
_SPLIT_SEED = 0
_LIKED_STARS = 4
_COLUMNS = {
    "inter": {
        "user": pa.string(),
        "item": pa.string(),
        "rating": pa.float64(),
        "timestamp": pa.float64(),
    },
    "user": {
        "user": pa.string(),
        "age": pa.int64(),
        "gender": pa.string(),
        "occupation": pa.string(),
        "zip_code": pa.string(),
    },
    "item": dict.fromkeys(("item", "title", "release_year", "genres"), pa.string()),
}
"""Names and types of the columns of each file."""
_REMEDY = "`embark data movielens-100k` fetches a good copy"


class MovieLens100K(InMemory):
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
        rated, users, items, user, item = _read(folder, ratings)
        order = np.random.default_rng(_SPLIT_SEED).permutation(ratings)
        train, validation, test = np.split(
            order, [ratings * 8 // 10, ratings * 9 // 10]
        )
        super().__init__(train, validation, test, seed)
        least = np.array(list(labels.values()) or [_LIKED_STARS])
        liked = (rated["rating"].to_numpy()[:, None] >= least).astype(np.float32)
        self._labels = liked if labels else liked[:, 0]
        time = rated["timestamp"].to_numpy()
        dense = np.column_stack([users["age"].to_numpy()[user], time])
        mean, std = dense[self._train].mean(axis=0), dense[self._train].std(axis=0)
        self._dense = ((dense - mean) / np.maximum(std, 1e-6)).astype(np.float32)

        # Ids follow the order of the file, in which each item occurs once.
        self.titles = tuple(items["title"].to_pylist())
        genres = [text.split() for text in items["genres"].to_pylist()]
        bags = {"genres": genres, "title_words": _title_words(self.titles)}
        items = pa.table({name: items[name] for name in items.column_names[:3]} | bags)
        # For each feature: the user or item of each rating, and the bag of each of
        # them.
        self._bags = {
            name: (user, _ids(users[name]))
            if name in users.column_names
            else (item, _ids(items[name]))
            for name in _TABLE_ROWS
        }
        self.table_rows = {
            name: max(0, int(ids.max())) + 1 for name, (_, ids) in self._bags.items()
        }
        self.features = _features(
            {name: ids.shape[1] for name, (_, ids) in self._bags.items()}, earlier_items
        )
        if earlier_items:
            sequences = _earlier(user, time, item, earlier_items)
            self._bags["earlier_items"] = (np.arange(ratings), sequences)
        self.dense_features = dense.shape[1]

    def _batch(self, rows: np.ndarray) -> Batch:
        """Returns the samples of these rows of ml-100k.inter."""
        return Batch(
            dense=self._dense[rows],
            ids={name: ids[owner[rows]] for name, (owner, ids) in self._bags.items()},
            labels=self._labels[rows],
            locate=lambda i: f"ml-100k.inter, line {rows[i] + 2}",
        )


def movielens_100k_next(
    folder: Path | None = None,
    length: int = 50,
    stride: int = 1,
    seed: int = 0,
    ratings: int = 100_000,
) -> LeaveOneOut:
    """Returns the films of each user by time, and of one time in the order of the file;
    arguments and errors as in ``MovieLens100K`` and ``LeaveOneOut``."""
    rated, _, _, user, item = _read(folder, ratings)
    order = np.lexsort([rated["timestamp"].to_numpy(), user])
    rows = int(item.max()) + 1
    return LeaveOneOut(
        user[order], item[order], rows, length=length, stride=stride, seed=seed
    )


class _Files(NamedTuple):
    """The three files, and the numbers of the users and items of the ratings."""

    ratings: pa.Table
    users: pa.Table
    items: pa.Table
    user: np.ndarray
    item: np.ndarray


def _read(folder: Path | None, ratings: int) -> _Files:
    """Reads the files, which RecBole describes:
    https://recbole.io/docs/user_guide/data/atomic_files.html."""
    folder = movielens_100k_folder() if folder is None else Path(folder)
    rated, users, items = (_table(folder, kind) for kind in _COLUMNS)
    numbers = []
    for name, table in (("user", users), ("item", items)):
        options = pc.SetLookupOptions(table[name])
        rows = pc.call_function("index_in", [rated[name]], options)
        if rows.null_count:
            unknown = rated[name].filter(rows.is_null())[0].as_py()
            path = folder / f"ml-100k.{name}"
            raise DataError(f"{path}: has no {name} {unknown!r}; {_REMEDY}")
        numbers.append(rows.to_numpy())
    if len(rated) != ratings:
        path = folder / "ml-100k.inter"
        raise DataError(
            f"{path}: has {len(rated)} ratings, must have {ratings}; {_REMEDY}"
        )
    return _Files(rated, users, items, *numbers)


def _table(folder: Path, kind: str) -> pa.Table:
    """Reads one of the files; its header has the types of its columns, too."""
    path, columns = folder / f"ml-100k.{kind}", _COLUMNS[kind]
    try:
        with path.open("rb") as file:
            table = pyarrow.csv.read_csv(
                file,
                pyarrow.csv.ReadOptions(column_names=list(columns), skip_rows=1),
                pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
                pyarrow.csv.ConvertOptions(column_types=columns),
            )
    except (OSError, pa.ArrowInvalid) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: {problem}; {_REMEDY}") from None
    return table.combine_chunks()


class MovieLensSource:
    """See ``Source``; the data set is the same everywhere."""

    def __init__(self, section: MovieLens100KConfig, embedding: EmbeddingConfig):
        self._section = section

    def open(self, seed: int) -> tuple[Dataset, Description]:
        section = self._section
        order = section.model_dump(mode="json", exclude={"path"})
        if section.split == "leave_one_out":
            dataset = movielens_100k_next(
                section.path, section.earlier_items, section.stride, seed
            )
            return dataset, Description.of(dataset, order=order)
        dataset = MovieLens100K(
            section.path,
            seed=seed,
            earlier_items=section.earlier_items,
            labels=section.labels,
        )
        labels = tuple(section.labels)
        return dataset, Description.of(dataset, labels=labels, order=order)

    def absent(self) -> Description | None:
        if (self._section.path or movielens_100k_folder()).exists():
            return None
        hotness = {name: _HOTNESS.get(name, 1) for name in _TABLE_ROWS}
        features = _features(hotness, self._section.earlier_items)
        if self._section.split == "leave_one_out":
            wanted = [f for f in features if f.table == "item"]
            return Description({"item": _TABLE_ROWS["item"]}, wanted, dense_features=0)
        labels = tuple(self._section.labels)
        return Description(_TABLE_ROWS, features, dense_features=2, labels=labels)


def _features(
    hotness: Mapping[str, int], earlier_items: int
) -> tuple[FeatureSpec, ...]:
    """Returns a feature for each table, and on request the sequence of items."""
    bags = (
        FeatureSpec(name, hotness=ids, pooling="mean" if ids > 1 else "sum")
        for name, ids in hotness.items()
    )
    if not earlier_items:
        return tuple(bags)
    return (*bags, FeatureSpec("earlier_items", "item", earlier_items, "none"))


def _title_words(titles: Sequence[str]) -> list[list[str]]:
    """Returns the words of each title that occur in enough titles."""
    words = [re.findall(r"[\w']+", title.lower()) for title in titles]
    counts = Counter(word for title in words for word in set(title))
    return [[w for w in title if counts[w] >= _TITLE_WORD_MIN_ITEMS] for title in words]


def _ids(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers values in order of first appearance: int32 ``[rows, hotness]`` ids,
    padded with -1."""
    bags = [v if isinstance(v, list) else [v] for v in column.to_pylist()]
    numbers: dict[Any, int] = {}
    ids = np.full((len(bags), max(1, *map(len, bags))), -1, np.int32)
    for row, bag in zip(ids, bags, strict=True):
        row[: len(bag)] = [numbers.setdefault(value, len(numbers)) for value in bag]
    return ids


def _earlier(
    user: np.ndarray, time: np.ndarray, item: np.ndarray, length: int
) -> np.ndarray:
    """Returns for each rating the items that the user rated last at an earlier time,
    the latest at the end: int32 ``[ratings, length]``, padded with -1 in front."""
    order = np.lexsort([time, user])
    earlier = np.full((len(user), length), -1, np.int32)
    for ratings in np.split(order, np.flatnonzero(np.diff(user[order])) + 1):
        ends = np.searchsorted(time[ratings], time[ratings])  # before those of a time
        for rating, end in zip(ratings, ends, strict=True):
            past = item[ratings[max(0, end - length) : end]]
            earlier[rating, length - len(past) :] = past
    return earlier
