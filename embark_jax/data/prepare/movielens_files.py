"""Reads the files of MovieLens, and prepares them as a click problem: 4 stars or more?

F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; terms of use:
https://grouplens.org/datasets/movielens/100k. Files are read in the form that
https://grouplens.org/datasets/movielens gives them, and those of 100k also in the form
of RecBole (https://recbole.io/docs/user_guide/data/atomic_files.html), as
``embark data movielens-100k`` fetches them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data.manifest import LABEL
from embark_jax.data.prepare.delimited import Column, Layout
from embark_jax.data.prepare.joins import SideTable
from embark_jax.data.prepare.recipe import DelimitedFile, Recipe, find
from embark_jax.plans.tables import FeatureSpec

LIKED_STARS = 4
SINGLES = ("user", "item", "age", "gender", "occupation", "zip_code", "release_year")
GENRES_100K = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
_YEAR_S = 365.25 * 86_400
_START_S = 788_918_400  # 1995, before MovieLens

_USER = Column("user", required=True)
_ITEM = Column("item", required=True)
_AGE = Column("age", "integer", required=True, bounds=(0, 150))
_ABOUT_USER = tuple(map(Column, ("gender", "occupation", "zip_code")))
_RATING = (
    _USER,
    _ITEM,
    Column("rating", "number", required=True, bounds=(1, 5)),
    Column("timestamp", "number", required=True, bounds=(_START_S, 2**33)),
)


class Files(NamedTuple):
    """The files of MovieLens.

    Attributes:
      ratings: ``user``, ``item``, ``rating`` and ``timestamp`` of each rating.
      users: ``age``, ``gender``, ``occupation`` and ``zip_code`` of each ``user``.
      items: ``title``, ``release_year`` and the list ``genres`` of each ``item``.
    """

    ratings: DelimitedFile
    users: SideTable
    items: SideTable


def recbole_100k(raw: Path) -> Files:
    """Reads ml-100k.inter, ml-100k.user and ml-100k.item, in which nothing is
    missing."""

    def layout(columns: Sequence[Column], *header: str) -> Layout:
        required = (dataclasses.replace(c, required=True) for c in columns)
        return Layout(tuple(required), header=header)

    about_user = "age:token", "gender:token", "occupation:token", "zip_code:token"
    about_item = "movie_title:token_seq", "release_year:token", "class:token_seq"
    users = layout((_USER, _AGE, *_ABOUT_USER), "user_id:token", *about_user)
    items = layout(
        (_ITEM, *map(Column, ("title", "release_year", "genres"))),
        "item_id:token",
        *about_item,
    )
    ratings = layout(
        _RATING, "user_id:token", "item_id:token", "rating:float", "timestamp:float"
    )
    about = SideTable(raw / "ml-100k.item", items, "item")
    genres = [text.split() for text in about.table["genres"].to_pylist()]
    return Files(
        DelimitedFile(raw / "ml-100k.inter", ratings),
        SideTable(raw / "ml-100k.user", users, "user"),
        _described(about, genres, about.table["release_year"].to_pylist()),
    )


def grouplens_100k(raw: Path) -> Files:
    """Reads u.data, u.user and u.item."""
    flags = (
        Column(name, "integer", required=True, bounds=(0, 1)) for name in GENRES_100K
    )
    about_item = map(Column, ("title", "release_date", "video_date", "url"))
    users = Layout((_USER, _AGE, *_ABOUT_USER), "|", encoding="latin-1")
    items = Layout((_ITEM, *about_item, *flags), "|", encoding="latin-1")
    about = SideTable(find(raw, "u.item"), items, "item")
    held = np.column_stack([about.table[name].to_numpy() for name in GENRES_100K]) > 0
    genres = [np.array(GENRES_100K)[row].tolist() for row in held]
    # Such as 01-Jan-1995; one film has none.
    dates = about.table["release_date"].to_pylist()
    return Files(
        DelimitedFile(find(raw, "u.data"), Layout(_RATING)),
        SideTable(find(raw, "u.user"), users, "user"),
        _described(about, genres, [date[-4:] if date else None for date in dates]),
    )


def grouplens_1m(raw: Path) -> Files:
    """Reads ratings.dat, users.dat and movies.dat."""
    gender, *others = _ABOUT_USER
    about_item = (Column("title", required=True), Column("genres", required=True))
    users = Layout((_USER, gender, _AGE, *others), "::", encoding="latin-1")
    items = Layout((_ITEM, *about_item), "::", encoding="latin-1")
    about = SideTable(find(raw, "movies.dat"), items, "item")
    genres = [text.split("|") for text in about.table["genres"].to_pylist()]
    # Titles end like "Toy Story (1995)".
    years = [title[-5:-1] for title in about.table["title"].to_pylist()]
    return Files(
        DelimitedFile(find(raw, "ratings.dat"), Layout(_RATING, "::")),
        SideTable(find(raw, "users.dat"), users, "user"),
        _described(about, genres, years),
    )


def _described(items: SideTable, genres: list, years: list) -> SideTable:
    """Returns the items with the columns of ``Files.items``."""
    columns = {name: items.table[name] for name in ("item", "title")}
    columns["release_year"] = pa.array(years)
    columns["genres"] = pa.array(genres, pa.list_(pa.string()))
    items.table = pa.table(columns)
    return items


def recipe_100k(raw: Path) -> Recipe:
    """Prepares RecBole's files, or else those of GroupLens."""
    is_recbole = (raw / "ml-100k.inter").is_file()
    return recipe(recbole_100k(raw) if is_recbole else grouplens_100k(raw))


def recipe_1m(raw: Path) -> Recipe:
    """Prepares the files of GroupLens."""
    return recipe(grouplens_1m(raw))


def recipe(files: Files) -> Recipe:
    """Prepares MovieLens; dense features are the age in centuries and the years since
    1995."""
    ratings, users, items = files

    def samples(columns: pa.Table, file: int) -> pa.Table:
        user = users.rows_of(columns["user"], required=True)
        item = items.rows_of(columns["item"], required=True)
        ages = user["age"].to_numpy()
        years = (columns["timestamp"].to_numpy() - _START_S) / _YEAR_S
        liked = columns["rating"].to_numpy() >= LIKED_STARS
        return pa.table(
            {
                LABEL: liked.astype(np.float32),
                "age_centuries": (ages / 100).astype(np.float32),
                "years": years.astype(np.float32),
                **{name: user[name] for name in users.table.column_names},
                **{name: item[name] for name in ("item", "release_year", "genres")},
            }
        )

    return Recipe(
        raw=[ratings],
        dense=("age_centuries", "years"),
        features=(*map(FeatureSpec, SINGLES), FeatureSpec("genres", pooling="mean")),
        samples=samples,
        sides=(users.path, items.path),
    )
