"""What devices look up in a step of DLRMv4 on generated events: the shares of unique
ids, and the load of each owner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data.prepare.yambda_files import Catalogue, Yambda

LONGEST, BATCH = 4086, 1024
TABLES = ("item", "album", "artist")
ROWS = {"item": 9_390_624, "album": 3_367_692, "artist": 1_293_395}
DAY_S = 86_400
PUBLISHED_UNIQUE = {"item": 0.024, "album": 0.015, "artist": 0.006}
"""Of 2.69 million ids of a device's step."""
PUBLISHED_LOAD = {"album": 2.8, "artist": 1.3}
"""Of the fullest of 32 devices over the mean, row-wise, duplicates included."""
USERS_A_DEVICE = 60
"""More than the samples of a device are of."""


class Lookups(NamedTuple):
    """The unique ids of a table that a device looks up in a step, and how often."""

    ids: np.ndarray
    counts: np.ndarray

    @property
    def unique_share(self) -> float:
        return len(self.ids) / int(self.counts.sum())


def steps(data: Yambda, devices: int) -> Iterator[dict[str, Lookups]]:
    """Yields what each device looks up: its samples are of one user after the other, on
    the last day."""
    users = dataclasses.replace(data, users=USERS_A_DEVICE * devices)
    catalogue = users.catalogue()
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    room, done = BATCH, 0
    for table in users.events(catalogue):
        for item, times_seen, samples in _of_users(table, users.days):
            seen.append((item, times_seen))
            room -= samples
            if room <= 0:
                yield _lookups(seen, catalogue)
                seen, room, done = [], BATCH, done + 1
                if done == devices:
                    return
    raise RuntimeError(f"{users.users} users have no {BATCH} samples for {devices}")


def _of_users(table: pa.Table, days: int):
    """Yields items of each user's events, how many samples of the last day see each,
    and how many samples there are."""
    columns = {name: table[name].to_numpy() for name in ("uid", "timestamp", "item_id")}
    ratio = np.nan_to_num(table["played_ratio_pct"].to_numpy().astype(np.float32))
    kind = np.array(table["event_type"].to_pylist())
    is_listen = kind == "listen"
    pool = np.select(
        [is_listen & (ratio >= 50), kind == "like", is_listen], [0, 1, 2], 3
    )
    last_day = columns["timestamp"] >= (days - 1) * DAY_S
    starts = np.flatnonzero(np.diff(columns["uid"].astype(np.int64), prepend=-1))
    for begin, end in zip(starts, [*starts[1:], len(kind)], strict=True):
        of_pools = [np.flatnonzero(pool[begin:end] == p) for p in range(3)]
        samples = np.flatnonzero((is_listen & last_day)[begin:end])
        samples = samples[samples >= LONGEST]
        seen = np.zeros(end - begin + 1, np.int64)
        for positions in of_pools:
            stop = np.searchsorted(positions, samples)
            first = np.maximum(0, stop - LONGEST // 3)
            by_rank = np.zeros(len(positions) + 1, np.int64)
            np.add.at(by_rank, first, 1)
            np.add.at(by_rank, stop, -1)
            seen[positions] = np.cumsum(by_rank)[:-1]
        seen[samples] += 1  # the candidate
        held = np.flatnonzero(seen[:-1])
        if len(samples):
            yield columns["item_id"][begin:end][held], seen[held], len(samples)


def _lookups(
    seen: Sequence[tuple[np.ndarray, np.ndarray]], catalogue: Catalogue
) -> dict[str, Lookups]:
    items = np.concatenate([item for item, _ in seen])
    times = np.concatenate([times_seen for _, times_seen in seen])
    ids = {
        "item": items.astype(np.int64),
        "album": np.maximum(catalogue.album[items], 0),
        "artist": catalogue.artist[items],
    }
    return {name: _counted(values, times) for name, values in ids.items()}


def _counted(ids: np.ndarray, times: np.ndarray) -> Lookups:
    unique, inverse = np.unique(ids, return_inverse=True)
    return Lookups(unique, np.bincount(inverse, times).astype(np.int64))


def row_wise_load(of_devices: Sequence[Mapping[str, Lookups]], table: str) -> float:
    """Returns the largest load of a device over the mean, if contiguous rows are on
    each, and duplicates travel."""
    devices = len(of_devices)
    rows = -(-ROWS[table] // devices)
    load = np.zeros(devices)
    for lookups in of_devices:
        ids, counts = lookups[table]
        load += np.bincount(ids // rows, counts, minlength=devices)
    return load.max() / load.mean()


def unique_load(of_devices: Sequence[Mapping[str, Lookups]], table: str) -> float:
    """Returns the same of unique rows, which go to devices in turn."""
    devices = len(of_devices)
    load = np.zeros(devices)
    for lookups in of_devices:
        load += np.bincount(lookups[table].ids % devices, minlength=devices)
    return load.max() / load.mean()
