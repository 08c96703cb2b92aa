"""Prepared data as a dataset: memory-mapped, shuffled anew each epoch, resumable."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.blocks import CRC32_DIGITS, arrays, crc32_of_arrays
from embark_jax.data.manifest import LABEL, MEND, SPLITS, Manifest
from embark_jax.data.multi_hot import bags_of

WINDOW_BLOCKS = 64
"""Blocks that are shuffled together: 64 MiB in memory, from all over the epoch."""
_OPEN_FILES = 128


class PreparedData:
    """A ``Dataset`` that `embark data prepare` or `embark data synth` made.

    The order of an epoch is a function of seed and epoch alone. Blocks are shuffled
    over the epoch, and samples within windows of WINDOW_BLOCKS of these blocks: files
    are read in pieces of a megabyte, and any batch is found without reading those
    before it.

    A block's checksum is looked at when it is read for the first time.

    Args:
      folder: with a ``manifest.json``.
      seed: orders the training samples, anew in each epoch.

    Raises:
      DataError: if the folder is not wholly prepared, or was damaged since; so does
        what reads samples.
    """

    def __init__(self, folder: Path, *, seed: int = 0):
        self.folder = Path(folder)
        self.manifest = manifests.load(self.folder)
        self._seed = seed
        self.table_rows = self.manifest.table_rows
        self.features = tuple(
            feature.spec(name) for name, feature in self.manifest.features.items()
        )
        self.dense_features = len(self.manifest.dense)
        self.train_samples = self.manifest.rows("train")
        if not self.train_samples:
            raise DataError(f"{self.folder}: has no training samples")
        self._splits = {split: _blocks(self.manifest, split) for split in SPLITS}
        self._blocks = self._splits["train"]
        # One of each is in use at a time; a batch at a border meets two windows.
        self._order = functools.lru_cache(maxsize=1)(self._make_order)
        self._window = functools.lru_cache(maxsize=1)(self._make_window)
        self._open = functools.lru_cache(maxsize=_OPEN_FILES)(self._open_part)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of training step ``step`` (from 0); may span epochs."""
        pieces, position = [], step * batch_size
        stop = position + batch_size
        while position < stop:
            epoch, place = divmod(position, self.train_samples)
            starts = self._order(epoch).starts
            window = int(np.searchsorted(starts, place, side="right")) - 1
            size = min(stop - position, int(starts[window + 1]) - place)
            rows = slice(place - starts[window], place - starts[window] + size)
            pieces.append(_cut(self._window(epoch, window), rows))
            position += size
        return self._batch(_join(pieces), "train")

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        """The whole validation set once, or None; the last batch may be shorter."""
        if not self.manifest.rows("validation"):
            return None
        return self.in_file_order("validation", batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole test set once; the last batch may be shorter."""
        return self.in_file_order("test", batch_size)

    def in_file_order(self, split: str, batch_size: int) -> Iterator[Batch]:
        """A split once, as its files have it; the last batch may be shorter."""
        blocks, held = self._splits[split], []
        for block in range(len(blocks.rows)):
            held.append(self._read(blocks, block))
            while (count := sum(len(piece[LABEL]) for piece in held)) >= batch_size:
                joined = _join(held)
                yield self._batch(_cut(joined, slice(0, batch_size)), split)
                held = [_cut(joined, slice(batch_size, count))]
        if held and len((rest := _join(held))[LABEL]):
            yield self._batch(rest, split)

    def bayes_auc(self) -> float | None:
        """Known for synthetic data only."""
        return self.manifest.bayes_auc

    def _make_order(self, epoch: int) -> _Order:
        rng = np.random.default_rng([self._seed, epoch])
        blocks = rng.permutation(len(self._blocks.rows))
        ends = np.cumsum(self._blocks.rows[blocks])
        starts = np.concatenate([[0], ends[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS]])
        if starts[-1] != ends[-1]:
            starts = np.append(starts, ends[-1])
        return _Order(blocks, starts)

    def _make_window(self, epoch: int, window: int) -> _Columns:
        start = window * WINDOW_BLOCKS
        blocks = np.sort(self._order(epoch).blocks[start : start + WINDOW_BLOCKS])
        read = _join([self._read(self._blocks, int(block)) for block in blocks])
        shuffle = np.random.default_rng([self._seed, epoch, window])
        return _cut(read, shuffle.permutation(len(read[LABEL])))

    def _read(self, blocks: _Blocks, block: int) -> _Columns:
        """A block's columns as they lie in the file: nothing is copied."""
        part, first = int(blocks.part[block]), int(blocks.first[block])
        size, file = int(blocks.rows[block]), blocks.files[part]
        try:
            number = first // self.manifest.block_rows
            columns = arrays(self._open(file).get_batch(number))
        except DataError:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{self.folder / file}: {error}; {MEND}") from None
        if not blocks.checked[block]:
            sizes = {len(values) for values in columns.values()}
            if sizes != {size} or crc32_of_arrays(columns) != blocks.crc32[block]:
                raise DataError(
                    f"{self.folder / file}, rows {first} to {first + size - 1}: are "
                    "not as they were written, the file is damaged; `embark data "
                    f"verify {self.folder}` looks for more such; {MEND}"
                )
            blocks.checked[block] = True
        start = int(blocks.part_starts[part]) + first
        return columns | {_ROW: np.arange(start, start + size)}

    def _open_part(self, file: str) -> pa.RecordBatchFileReader:
        path = self.folder / file
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if not reader.schema.equals(self.manifest.schema()):
            raise DataError(
                f"{path}: its columns are not those of the manifest; {MEND}"
            )
        return reader

    def _batch(self, columns: _Columns, split: str) -> Batch:
        ids = {}
        for name, feature in self.manifest.features.items():
            values, rows = columns[name], self.table_rows[feature.table]
            if feature.bags_of_one_id:
                values = bags_of(values, feature.table, rows, feature.hotness)
            ids[name] = values.reshape(len(values), feature.hotness)
        dense = np.empty((len(columns[LABEL]), self.dense_features), np.float32)
        for place, name in enumerate(self.manifest.dense):
            dense[:, place] = columns[name]

        def locate(sample: int) -> str:
            row = int(columns[_ROW][sample])
            for part in self.manifest.parts[split]:
                if row < part.rows:
                    return f"{self.folder / part.file}, row {row}"
                row -= part.rows
            raise IndexError(sample)

        return Batch(dense, ids, columns[LABEL], locate=locate)


_Columns = dict[str, np.ndarray]
_ROW = "\0row"
"""Of a sample in its split, beside the columns of the files; none is called so."""


class _Order(NamedTuple):
    """Blocks of an epoch in order, and the position where each window starts; the last
    start is the end of the epoch."""

    blocks: np.ndarray
    starts: np.ndarray


class _Blocks(NamedTuple):
    """For each block of a split: its part, its first row there, its rows, its checksum,
    and whether that was looked at; and the file and the first row in the split of each
    part."""

    files: list[str]
    part_starts: np.ndarray
    part: np.ndarray
    first: np.ndarray
    rows: np.ndarray
    crc32: list[str]
    checked: np.ndarray


def _blocks(manifest: Manifest, split: str) -> _Blocks:
    found = [
        (number, first, min(manifest.block_rows, part.rows - first))
        for number, part in enumerate(manifest.parts[split])
        for first in range(0, part.rows, manifest.block_rows)
    ]
    part, first, rows = np.array(found, np.int64).reshape(-1, 3).T
    parts = manifest.parts[split]
    starts = np.cumsum([0, *(each.rows for each in parts)])
    crc32 = [
        each.crc32[place : place + CRC32_DIGITS]
        for each in parts
        for place in range(0, len(each.crc32), CRC32_DIGITS)
    ]
    if len(crc32) != len(rows):
        raise DataError(
            f"the manifest has {len(crc32)} checksums of the {len(rows)} blocks of "
            f"{split!r}; {MEND}"
        )
    files, checked = [each.file for each in parts], np.zeros(len(rows), bool)
    return _Blocks(files, starts, part, first, rows, crc32, checked)


def _cut(columns: _Columns, rows: slice | np.ndarray) -> _Columns:
    return {name: values[rows] for name, values in columns.items()}


def _join(pieces: list[_Columns]) -> _Columns:
    if len(pieces) == 1:
        return pieces[0]
    return {
        name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]
    }
