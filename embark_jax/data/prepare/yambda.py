"""Reads Yambda, events of users of a music service: 50m, 500m or 5b
(https://huggingface.co/datasets/yandex/yambda, https://arxiv.org/abs/2505.22238).

The rules are those of MLPerf Training's DLRMv4
(https://github.com/mlcommons/training): a sample is a listen after enough events, and
its label is whether half of the track was played. A sample has three ids of its item, a
user, and crosses of these; its history is a range of the user's events before it
(``data/event_lists.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embark_jax._base.files import new_folder, replacing, write_arrow
from embark_jax.data import event_lists as lists
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.event_lists import EventLists
from embark_jax.data.hashed_file import HashedFile
from embark_jax.data.manifest import Manifest, PreparedFeature
from embark_jax.data.pipeline import Workers
from embark_jax.data.prepare.raw_files import Chunk, ParquetFile
from embark_jax.data.prepare.yambda_samples import (
    CROSSES,
    EVENT_TYPES,
    USERS,
    GroupWriter,
    Options,
    RowGroup,
)

TICK_S = 5
"""Timestamps are multiples of this."""
EVENTS = "multi_event.parquet"
ARTISTS, ALBUMS = "artist_item_mapping", "album_item_mapping"
LONG_PERCENT = 50
"""Percentage of a track that a long listen has played at least."""
GROUP_EVENTS = 2**24
"""Events whose users are sorted at once; a thread needs some hundred bytes for each."""
COLUMNS = (
    "uid",
    "timestamp",
    "item_id",
    "is_organic",
    "event_type",
    "played_ratio_pct",
)
DENSE = ("hour_cos", "hour_sin", "weekday_cos", "weekday_sin")


class _Raw(NamedTuple):
    events: Path
    artists: Path
    albums: Path


def events_path(folder: Path, size: str) -> Path:
    """Returns the path of the events of a size."""
    return folder / f"flat/{size}/{EVENTS}"


def prepare(
    raw: Path,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    workers: Workers | None = None,
) -> Manifest:
    """Prepares Yambda in the folder ``out``.

    Args:
      raw: folder with the files as they are downloaded, of one size.
      out: a new or empty folder.
      options: the user's options.
      made_from: what else determines the samples; it is kept in the manifest.
      workers: threads, which tell how far the work is; None takes one per core.

    Raises:
      DataError: if a raw file is bad, or ``out`` holds something.
    """
    files = _find(raw)
    sizes = {str(path): path.stat().st_size for path in files}
    made_from = {**made_from, **options.model_dump(), "raw": sizes}
    with new_folder(out) as folder:
        return _prepare(files, folder, options, made_from, workers or Workers())


def _prepare(
    files: _Raw,
    out: Path,
    options: Options,
    made_from: Mapping[str, Any],
    workers: Workers,
) -> Manifest:
    """Fills a new folder."""
    work = out / ".work"
    parser = _parser(files.events, work / "parsed")
    row_groups = list(workers.map("parse", parser, _chunks(files.events)))
    items = _items(files, 1 + max(row_group.largest_item for row_group in row_groups))
    with replacing(out / "items.npy") as scratch, scratch.open("wb") as file:
        np.save(file, items)
    manifest = _manifest(out, made_from, options, items, row_groups)
    count = -(-sum(row_group.rows for row_group in row_groups) // GROUP_EVENTS)
    write = GroupWriter(out, manifest, options, items, row_groups, count)
    groups = list(workers.map("group", write, range(count)))
    records = [file for group in groups for file in group.records]
    if not records:
        raise DataError(
            f"{files.events}: no user has a listen after {options.min_history:,} "
            "events; lower min_history"
        )
    records.sort(key=lambda file: (file.window, file.file))
    events = tuple(group.events for group in groups)
    assert manifest.events is not None
    manifest = manifest.model_copy(
        update={
            "files": dict.fromkeys(manifests.SPLITS, ())
            | {manifests.SPLITS[0]: tuple(records)},
            "events": manifest.events.model_copy(update={"files": events}),
        }
    )
    manifest.save(out)
    shutil.rmtree(work)
    return manifest


def _find(raw: Path) -> _Raw:
    """Returns the paths of the raw files.

    Raises:
      DataError: if one is missing, or there are several sizes.
    """
    event_files = sorted(raw.glob("flat/*/multi_event.parquet"))
    root = raw
    if not event_files and (raw / "multi_event.parquet").exists():
        event_files, root = [raw / "multi_event.parquet"], raw.parents[1]
    if len(event_files) != 1:
        what = ", ".join(path.parent.name for path in event_files) or "no size"
        raise DataError(
            f"{raw}: has {what} in flat/, must have one with multi_event.parquet; give "
            "its own folder, such as flat/50m, with --raw"
        )
    sides = [root / f"{name}.parquet" for name in (ARTISTS, ALBUMS)]
    for path in sides:
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; Yambda has it beside the folder flat"
            )
    return _Raw(event_files[0], *sides)


def _chunks(path: Path) -> list[tuple[int, Chunk]]:
    missing = {*COLUMNS} - {*pq.read_schema(path).names}
    if missing:
        raise DataError(f"{path}: has no column {', '.join(sorted(missing))}")
    return list(enumerate(ParquetFile(path, COLUMNS).chunks()))


def _parser(events: Path, folder: Path):
    def parse(job: tuple[int, Chunk]) -> RowGroup:
        number, chunk = job
        path = folder / f"{number:06}.arrow"
        raw = chunk.rows.rename_columns(list(COLUMNS))
        table = USERS.by_hash(_typed(raw, f"{events}, row group {number}"))
        write_arrow(path, table)
        largest = [int(table[name].to_numpy().max()) for name in ("item_id", "uid")]
        return RowGroup(path, len(table), *largest)

    return parse


def _typed(table: pa.Table, where: str) -> pa.Table:
    """Returns the columns of a row group as numbers.

    Raises:
      DataError: if a value is missing or unknown.
    """
    names = table["event_type"].cast(pa.string())
    kind = pc.call_function(
        "index_in", [names], pc.SetLookupOptions(pa.array(EVENT_TYPES))
    )
    if kind.null_count:
        row = kind.is_null().to_numpy().argmax()
        raise DataError(
            f"{where}, row {row}: event_type is {table['event_type'][row].as_py()!r}, "
            f"must be one of {', '.join(EVENT_TYPES)}"
        )
    for name in COLUMNS[:4]:
        if table[name].null_count:
            raise DataError(f"{where}: column {name!r} has missing values")
    try:
        ratio = table["played_ratio_pct"].cast(pa.float32()).to_numpy()
        # A null, as likes have it, is NaN.
        is_long = np.nan_to_num(ratio) >= LONG_PERCENT
        return pa.table(
            {
                "uid": _ids(table["uid"]).cast(pa.int64()),
                "timestamp": table["timestamp"].cast(pa.uint32()),
                "item_id": _ids(table["item_id"]),
                "is_organic": table["is_organic"].cast(pa.uint8()),
                "kind": kind.cast(pa.uint8()),
                "is_long": is_long.astype(np.uint8),
            }
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: {error}") from None


def _ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns ids as uint32.

    Raises:
      pa.ArrowInvalid: if one is negative, or no int32, as batches hold them.
    """
    return column.cast(pa.int32()).cast(pa.uint32())


def _items(files: _Raw, least: int) -> np.ndarray:
    """Returns artist and album of each item, 0 where it has none; the last of
    several.

    Raises:
      DataError: if an id is missing, negative, or too large for 32 bits.
    """
    arrays = []
    for path, key in ((files.artists, "artist_id"), (files.albums, "album_id")):
        try:
            table = pq.read_table(path, columns=[key, "item_id"])
            columns = [_ids(table[name]) for name in (key, "item_id")]
        except (pa.ArrowException, KeyError) as error:
            raise DataError(f"{path}: {error}") from None
        if any(column.null_count for column in columns):
            raise DataError(f"{path}: {key} or item_id has missing values")
        arrays.append([column.to_numpy() for column in columns])
    largest = max(int(items.max(initial=0)) for _, items in arrays)
    sides = np.zeros(max(least, largest + 1), lists.ITEM)
    for name, (ids, items) in zip(lists.ITEM.names or (), arrays, strict=True):
        sides[name][items] = ids
    return sides


def _manifest(
    out: Path,
    made_from: Mapping[str, Any],
    options: Options,
    items: np.ndarray,
    row_groups: Sequence[RowGroup],
) -> Manifest:
    """Returns the manifest, complete but for the files of events and samples."""
    table_rows = {
        "item": len(items),
        "artist": int(items["artist"].max()) + 1,
        "album": int(items["album"].max()) + 1,
        "uid": 1 + max(row_group.largest_user for row_group in row_groups),
        **{n: min(r, options.most_cross_rows) for n, (_, r) in CROSSES.items()},
        "time": lists.TIME_BUCKETS + 1,
        "action": lists.POOLS + 1,
    }
    features = {
        name: PreparedFeature(table=name, hotness=1, pooling="sum")
        for name in table_rows
    }
    for name in lists.SEQUENCES:
        features[name] = PreparedFeature(
            table=name.removeprefix("past_"), hotness=options.longest, pooling="none"
        )
    return Manifest.of(
        made_from=made_from,
        dense=DENSE,
        features=features,
        table_rows=table_rows,
        hashed_tables=tuple(CROSSES),
        raw_rows=sum(row_group.rows for row_group in row_groups),
        events=EventLists(
            files=(),
            items=HashedFile.of(out, "items.npy"),
            longest=options.longest,
            history=options.history,
        ),
    )
