"""Reads MovieLens-100k and MovieLens-1M as click problems: 4 stars or more?

F. M. Harper and J. A. Konstan, https://doi.org/10.1145/2827872; files as
https://grouplens.org/datasets/movielens has them, and those of 100k also as RecBole has
(``embark data movielens-100k``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from embark_jax.data.manifest import LABEL
from embark_jax.data.movielens import ITEM_HEADER, RATING_HEADER, USER_HEADER
from embark_jax.data.prepare.delimited import Column, Layout
from embark_jax.data.prepare.joins import SideTable
from embark_jax.data.prepare.recipe import DelimitedFile, Recipe, find
from embark_jax.plans.tables import FeatureSpec

LIKED_STARS = 4
SINGLES = ("user", "item", "age", "gender", "occupation", "zip_code", "release_year")
_YEAR_S = 365.25 * 86_400
_START_S = 788_918_400  # 1995, before MovieLens

_USER = Column("user", required=True)
_ITEM = Column("item", required=True)
_RATING = (
    _USER,
    _ITEM,
    Column("rating", "number", required=True, bounds=(0.5, 5)),
    Column("timestamp", "number", required=True, bounds=(_START_S, 2**33)),
)
_ABOUT = tuple(map(Column, ("gender", "occupation", "zip_code")))
_AGE = Column("age", "integer", required=True, bounds=(0, 150))
_RECBOLE_ITEM = ("title", "release_year", "genres")
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


def movielens_100k(raw: Path) -> Recipe:
    """Reads u.data, u.user and u.item, or else RecBole's ml-100k.* files."""
    if (raw / "ml-100k.inter").is_file():
        return _recbole_100k(raw)
    flags = (
        Column(name, "integer", required=True, bounds=(0, 1)) for name in GENRES_100K
    )
    about_item = map(Column, ("title", "release_date", "video_date", "url"))
    users = SideTable(
        find(raw, "u.user"),
        Layout((_USER, _AGE, *_ABOUT), "|", encoding="latin-1"),
        "user",
    )
    items = SideTable(
        find(raw, "u.item"),
        Layout((_ITEM, *about_item, *flags), "|", encoding="latin-1"),
        "item",
    )
    table = items.table
    held = np.column_stack([table[name].to_numpy() for name in GENRES_100K]) > 0
    genres = [np.array(GENRES_100K)[row].tolist() for row in held]
    # Such as 01-Jan-1995; one film has none.
    dates = table["release_date"].to_pylist()
    _describe_items(items, genres, [date[-4:] if date else None for date in dates])
    ratings = DelimitedFile(find(raw, "u.data"), Layout(_RATING))
    return _recipe(ratings, users, items)


def movielens_1m(raw: Path) -> Recipe:
    """Reads ratings.dat, users.dat and movies.dat."""
    gender, *others = _ABOUT
    users = SideTable(
        find(raw, "users.dat"),
        Layout((_USER, gender, _AGE, *others), "::", encoding="latin-1"),
        "user",
    )
    about_item = (Column("title", required=True), Column("genres", required=True))
    items = SideTable(
        find(raw, "movies.dat"),
        Layout((_ITEM, *about_item), "::", encoding="latin-1"),
        "item",
    )
    genres = [text.split("|") for text in items.table["genres"].to_pylist()]
    # Titles end like "Toy Story (1995)".
    years = [title[-5:-1] for title in items.table["title"].to_pylist()]
    _describe_items(items, genres, years)
    ratings = DelimitedFile(find(raw, "ratings.dat"), Layout(_RATING, "::"))
    return _recipe(ratings, users, items)


def _recbole_100k(raw: Path) -> Recipe:
    user, item = (_USER, _AGE, *_ABOUT), (_ITEM, *map(Column, _RECBOLE_ITEM))
    users = SideTable(
        find(raw, "ml-100k.user"), Layout(user, header=USER_HEADER), "user"
    )
    items = SideTable(
        find(raw, "ml-100k.item"), Layout(item, header=ITEM_HEADER), "item"
    )
    genres = [(text or "").split() for text in items.table["genres"].to_pylist()]
    _describe_items(items, genres, items.table["release_year"].to_pylist())
    layout = Layout(_RATING, header=RATING_HEADER)
    return _recipe(DelimitedFile(find(raw, "ml-100k.inter"), layout), users, items)


def _describe_items(items: SideTable, genres: list, years: list) -> None:
    """Keeps only the genres and the year of each item."""
    columns = {"item": items.table["item"], "release_year": pa.array(years)}
    columns["genres"] = pa.array(genres, pa.list_(pa.string()))
    items.table = pa.table(columns)


def _recipe(ratings: DelimitedFile, users: SideTable, items: SideTable) -> Recipe:
    """Dense features are the age in centuries and the years since 1995."""

    def samples(columns: pa.Table, file: int) -> pa.Table:
        user = users.rows_of(columns["user"], required=True)
        item = items.rows_of(columns["item"], required=True)
        ages = user["age"].to_numpy()
        years = (columns["timestamp"].to_numpy() - _START_S) / _YEAR_S
        liked = columns["rating"].to_numpy() >= LIKED_STARS
        values = {name: user[name] for name in ("gender", "occupation", "zip_code")}
        return pa.table(
            {
                LABEL: liked.astype(np.float32),
                "age_centuries": (ages / 100).astype(np.float32),
                "years": years.astype(np.float32),
                "user": columns["user"],
                "item": columns["item"],
                "age": user["age"],
                **values,
                "release_year": item["release_year"],
                "genres": item["genres"],
            }
        )

    return Recipe(
        raw=[ratings],
        dense=("age_centuries", "years"),
        features=(*map(FeatureSpec, SINGLES), FeatureSpec("genres", pooling="mean")),
        samples=samples,
        sides=(users.path, items.path),
    )
