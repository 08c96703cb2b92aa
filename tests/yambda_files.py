"""Writes synthetic files in the layout of Yambda, of any size.

An artist has albums, and an album has items. A user has artists, drawn by popularity,
listens to the first of them most, and prefers the first albums of an artist and the
first items of an album: each by a power law. Exponents and the share of items without
an album are fitted to what MLPerf's reference says of the real data
(docs/pages/results.md); a table's ids are in random order, as there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import expit

from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.prepare.yambda import (
    ALBUMS,
    ARTISTS,
    LONG_PERCENT,
    TICK_S,
    events_path,
)
from embark_jax.data.prepare.yambda_samples import DAY_S, EVENT_TYPES, HOUR_S
from embark_jax.data.synthetic import power_law_ids

CHUNK_EVENTS = 2**20
_LISTEN_PLUS_LOGIT = 0.55
"""Of listens to neither known nor popular artists; 63 % of all are long."""
_NORMAL_TERMS = 12
_FIRST_ALBUM = 0.5


@dataclasses.dataclass(frozen=True)
class Yambda:
    """Synthetic events.

    Attributes:
      users, items, albums, artists: how many there are; the defaults but for users are
        those of 5b.
      days: number of days.
      events_a_day: mean number of events of a user in a day.
      activity: deviation of the logarithm of that number over users.
      artist_exponent: exponent of the popularity of artists.
      catalogue_exponent: exponent of the number of their albums.
      taste_exponent: exponent of how often a user chooses each artist of theirs.
      album_exponent, item_exponent: exponents of albums of an artist, and of items of
        an album.
      without_album: share of items that no album has.
      seed: determines all.
    """

    users: int = 1_000_000
    items: int = 9_390_624
    albums: int = 3_367_692
    artists: int = 1_293_395
    days: int = 300
    events_a_day: float = 21.0
    activity: float = 0.3
    artist_exponent: float = 0.8
    catalogue_exponent: float = 0.8
    taste_exponent: float = 1.41
    album_exponent: float = 0.6
    item_exponent: float = 0.05
    without_album: float = 0.056
    seed: int = 0

    def scaled(self, scale: float) -> Yambda:
        """Returns data of a share of the items, albums and artists."""
        sizes = {
            name: max(1, round(getattr(self, name) * scale))
            for name in ("items", "albums", "artists")
        }
        return dataclasses.replace(self, **sizes)

    def write(self, folder: Path, size: str = "5b") -> None:
        """Writes the files of a size, such as 50m, into a folder."""
        catalogue = self.catalogue()
        path = events_path(folder, size)
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, ids in ((ARTISTS, catalogue.artist), (ALBUMS, catalogue.album)):
            items = np.flatnonzero(ids >= 0).astype(np.uint32)
            key = name.removesuffix("_item_mapping")
            columns = {f"{key}_id": ids[items].astype(np.uint32), "item_id": items}
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        writer = None
        for table in self.events(catalogue):
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()

    def catalogue(self) -> Catalogue:
        """Draws the albums and the artist of each item."""
        rng = np.random.default_rng([self.seed, 0])
        extra = power_law_ids(
            rng.random(max(0, self.albums - self.artists)),
            self.artists,
            self.catalogue_exponent,
        )
        albums = _one_each(extra, self.artists)
        owner = np.repeat(np.arange(self.artists), np.diff(albums))
        # Most albums are short: of further items, half are of an artist's first.
        extra = rng.integers(self.albums, size=max(0, self.items - self.albums))
        is_first = rng.random(len(extra)) < _FIRST_ALBUM
        items = _one_each(np.where(is_first, albums[owner[extra]], extra), self.albums)
        artist_of_album = rng.permutation(self.artists)[owner]
        album_of_item = np.repeat(np.arange(self.albums), np.diff(items))
        item_id = rng.permutation(self.items).astype(np.uint32)
        artist = np.empty(self.items, np.int64)
        album = np.empty(self.items, np.int64)
        artist[item_id] = artist_of_album[album_of_item]
        album[item_id] = rng.permutation(self.albums)[album_of_item]
        album[rng.random(self.items) < self.without_album] = -1
        return Catalogue(albums, items, item_id, artist, album)

    def events(self, catalogue: Catalogue) -> Iterator[pa.Table]:
        """Yields all events, ordered by user and time."""
        rng = np.random.default_rng([self.seed, 1])
        mean = self.days * self.events_a_day / np.exp(self.activity**2 / 2)
        counts = mean * np.exp(self.activity * rng.standard_normal(self.users))
        counts = np.maximum(1, counts.astype(np.int64))
        ends = np.cumsum(counts)
        chunks = range(0, int(ends[-1]), CHUNK_EVENTS)
        cuts = [*np.searchsorted(ends, chunks), self.users]
        for number, first in enumerate(cuts[:-1]):
            users = np.arange(first, cuts[number + 1])
            if len(users):
                user = np.repeat(users, counts[users])
                yield self._events_of(user, number, catalogue)

    def _events_of(self, user: np.ndarray, number: int, catalogue: Catalogue):
        rng = np.random.default_rng([self.seed, 2, number])
        time = self._times(rng, user)
        liked = power_law_ids(rng.random(len(user)), self.artists, self.taste_exponent)
        of_user = user.astype(np.uint64) * GOLDEN_GAMMA
        uniform = _uniform(of_user + liked.astype(np.uint64), self.seed)
        artist = power_law_ids(uniform, self.artists, self.artist_exponent)
        album = _among(rng, catalogue.albums, artist, self.album_exponent)
        position = _among(rng, catalogue.items, album, self.item_exponent)
        item = catalogue.item_id[position]
        # What a user thinks of an item: partly what all think of it and its artist.
        logit = _LISTEN_PLUS_LOGIT + 0.9 * _normal(item, self.seed)
        logit += 0.9 * _normal(artist, self.seed + 1) + 0.5 * (liked < 2)
        is_long = rng.random(len(user)) < expit(logit)
        ratio = rng.integers(LONG_PERCENT, size=len(user)) + LONG_PERCENT * is_long
        kind = np.searchsorted(np.cumsum(_KIND_SHARES), rng.random(len(user)))
        is_listen = kind == 0
        length = 60 + _uniform(item.astype(np.uint64), self.seed) * 240
        types = pa.DictionaryArray.from_arrays(
            pa.array(kind.astype(np.int8)), pa.array(EVENT_TYPES)
        )
        return pa.table(
            {
                "uid": user.astype(np.uint32),
                "timestamp": time.astype(np.uint32),
                "item_id": item,
                "is_organic": (rng.random(len(user)) < 0.7).astype(np.uint8),
                "event_type": types.cast(pa.string()),
                "played_ratio_pct": pa.array(ratio.astype(np.uint16), mask=~is_listen),
                "track_length_seconds": pa.array(
                    length.astype(np.uint32), mask=~is_listen
                ),
            }
        )

    def _times(self, rng: np.random.Generator, user: np.ndarray) -> np.ndarray:
        """Returns sorted times of each user's events, mostly around an hour of
        theirs."""
        hour = 24 * _uniform(user.astype(np.uint64), self.seed + 2)
        hour = (hour + 4 * rng.standard_normal(len(user))) % 24
        time = rng.integers(self.days, size=len(user)) * DAY_S + hour * HOUR_S
        time = (time / TICK_S).astype(np.int64) * TICK_S
        return time[np.lexsort([time, user])]


class Catalogue(NamedTuple):
    """Items by artist and album, the most popular artist first.

    Attributes:
      albums: ``[artists + 1]`` where the albums of each artist begin.
      items: ``[albums + 1]`` where the items of each album begin.
      item_id: ``[items]`` id of each.
      artist, album: ``[items]`` by id; -1 where an item has none.
    """

    albums: np.ndarray
    items: np.ndarray
    item_id: np.ndarray
    artist: np.ndarray
    album: np.ndarray


_KIND_SHARES = (0.972, 0.019, 0.004, 0.003, 0.002)
"""Shares of EVENT_TYPES: those of listens and likes are published."""


def _one_each(extra: np.ndarray, owners: int) -> np.ndarray:
    """Returns where the shares begin of owners that have one each, and these more."""
    return np.append(0, np.cumsum(1 + np.bincount(extra, minlength=owners)))


def _among(rng, starts: np.ndarray, owner: np.ndarray, exponent: float) -> np.ndarray:
    """Draws one of each owner's, the first most often."""
    count = starts[owner + 1] - starts[owner]
    return starts[owner] + power_law_ids(rng.random(len(owner)), count, exponent)


def _uniform(keys: np.ndarray, seed: int) -> np.ndarray:
    """Returns a number in [0, 1) by a hash of each key."""
    salt = splitmix64(np.array([seed + 1], np.uint64) * GOLDEN_GAMMA)
    bits = splitmix64(splitmix64(keys + salt) * GOLDEN_GAMMA + salt)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(keys: np.ndarray, seed: int) -> np.ndarray:
    """Returns a nearly standard normal number by a hash of each key."""
    sums = np.zeros(len(keys))
    for term in range(_NORMAL_TERMS):
        shift = np.uint64(term << 40)
        sums += _uniform(keys.astype(np.uint64) + shift, seed)
    return sums - _NORMAL_TERMS / 2
