"""MovieLens-100k in memory: did this user give this film 4 stars or more?

F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; terms of use:
https://grouplens.org/datasets/movielens/100k. RecBole describes the files:
https://recbole.io/docs/user_guide/data/atomic_files.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from embark_jax.config import EmbeddingConfig, MovieLens100KConfig
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import Dataset, InMemory
from embark_jax.data.download import movielens_100k_folder
from embark_jax.data.jagged import Jagged
from embark_jax.data.leave_one_out import LeaveOneOut, earlier
from embark_jax.data.source import Description
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import sql
from embark_jax.prepare.raw_files import TextFile
from embark_jax.prepare.reading import read
from embark_jax.prepare.values import Column, define

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
_REMEDY = "`embark data movielens-100k` fetches a good copy"
_FILES = {
    "inter": "user_id:token item_id:token rating:float timestamp:float",
    "user": "user_id:token age:token gender:token occupation:token zip_code:token",
    "item": "item_id:token movie_title:token_seq release_year:token class:token_seq",
}
"""The header of each file."""
_NUMBERS = ("rating", "timestamp", "age")
# Numbers of users and items are the rows of their files. Ratings that are numbered by
# user and time have their user's from "first" on, and those of an earlier time up to
# "end".
_RATINGS = """
SELECT rating, timestamp, "user".rowid AS "user", item.rowid AS item, user_id, item_id,
  rank() OVER (ORDER BY "user".rowid) - 1 AS first,
  rank() OVER (ORDER BY "user".rowid, timestamp) - 1 AS "end",
  row_number() OVER (ORDER BY "user".rowid, timestamp, inter.rowid) - 1 AS number
FROM inter LEFT JOIN "user" USING (user_id) LEFT JOIN item USING (item_id)
ORDER BY inter.rowid
"""
# A word of a single title tells no more than the item's id.
_ITEMS = r"""
WITH titles AS (
  SELECT *, rowid AS number,
    regexp_extract_all(lower(movie_title), '[\pL\pN_'']+') AS words FROM item),
words AS (SELECT DISTINCT number, unnest(words) AS word FROM titles),
common AS (SELECT list(word) AS words FROM (
  SELECT word FROM words GROUP BY word HAVING count(*) > 1))
SELECT item_id AS item, movie_title, release_year, string_split("class", ' ') AS genres,
  list_filter(titles.words, lambda word: list_contains(common.words, word))
    AS title_words
FROM titles, common ORDER BY number
"""


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

    dense_features = 2

    def __init__(
        self,
        folder: Path | None = None,
        *,
        seed: int = 0,
        earlier_items: int = 0,
        labels: Mapping[str, int] = MappingProxyType({}),
        ratings: int = 100_000,
    ):
        rated, users, items = _read(folder, ratings)
        order = np.random.default_rng(_SPLIT_SEED).permutation(ratings)
        cuts = [ratings * 8 // 10, ratings * 9 // 10]
        train, validation, test = np.split(order, cuts)
        super().__init__(train, validation, test, seed)
        least = np.array(list(labels.values()) or [_LIKED_STARS])
        liked = (rated["rating"][:, None] >= least).astype(np.float32)
        self._labels = liked if labels else liked[:, 0]
        age = users["age"].to_numpy()[rated["user"]]
        dense = np.column_stack([age, rated["timestamp"]])
        mean, std = dense[self._train].mean(axis=0), dense[self._train].std(axis=0)
        self._dense = ((dense - mean) / np.maximum(std, 1e-6)).astype(np.float32)
        self.titles = tuple(items["movie_title"].to_pylist())
        owner = {n: "user" if n in users.column_names else "item" for n in _TABLE_ROWS}
        bags = {
            n: _numbered({"user": users, "item": items}[o][n]) for n, o in owner.items()
        }
        self.table_rows = {n: max(0, int(ids.max())) + 1 for n, ids in bags.items()}
        hotness = {name: ids.shape[1] for name, ids in bags.items()}
        self.features = _features(hotness, earlier_items)
        self._ids = {name: ids[rated[owner[name]]] for name, ids in bags.items()}
        if earlier_items:
            items = self._ids["item"][np.argsort(rated["number"]), 0]
            past = earlier(items, rated["first"], rated["end"], earlier_items)
            self._ids["earlier_items"] = past

    def _batch(self, rows: np.ndarray) -> Batch:
        """Returns the samples of these rows of ml-100k.inter."""
        return Batch(
            dense=self._dense[rows],
            ids={name: ids[rows] for name, ids in self._ids.items()},
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
    rated, _, _ = _read(folder, ratings)
    order = np.argsort(rated["number"])
    user, item = rated["user"][order], rated["item"][order]
    rows = int(item.max()) + 1
    return LeaveOneOut(user, item, rows, length=length, stride=stride, seed=seed)


def _read(
    folder: Path | None, ratings: int
) -> tuple[dict[str, np.ndarray], pa.Table, pa.Table]:
    """Returns the columns of the ratings, users and items."""
    folder = movielens_100k_folder() if folder is None else Path(folder)
    paths = {kind: folder / f"ml-100k.{kind}" for kind in _FILES}
    with sql.Database() as database:
        define(database)
        for kind, header in _FILES.items():
            file = TextFile(paths[kind], tuple(header.split()), header=True)
            try:
                read(database, kind, file, [_column(name) for name in file.columns])
            except DataError as error:
                raise DataError(f"{error}; {_REMEDY}") from None
        rated = database.table(_RATINGS)
        users = database.table('SELECT *, user_id AS "user" FROM "user" ORDER BY rowid')
        items = database.table(_ITEMS)
    for name in ("user", "item"):
        unknown = rated.filter(rated[name].is_null())[f"{name}_id"]
        if len(unknown):
            raise DataError(f"{paths[name]}: has no {name} {unknown[0]}; {_REMEDY}")
    if len(rated) != ratings:
        raise DataError(
            f"{paths['inter']}: has {len(rated)} ratings, must have {ratings}; "
            f"{_REMEDY}"
        )
    rated = rated.drop_columns(["user_id", "item_id"])
    return {n: rated[n].to_numpy() for n in rated.column_names}, users, items


def _column(name: str) -> Column:
    alias, _, _ = name.partition(":")
    kind = "number" if alias in _NUMBERS else "category"
    return Column(name, kind, required=True, alias=alias)


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


def _numbered(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers values in order of first appearance: int32 ``[rows, hotness]`` ids,
    padded with -1."""
    values = column.combine_chunks()
    length = np.ones(len(values), np.int32)
    if pa.types.is_list(values.type):
        length = values.value_lengths().to_numpy()
        values = values.flatten()
    return np.asarray(Jagged(values.dictionary_encode().indices.to_numpy(), length))
