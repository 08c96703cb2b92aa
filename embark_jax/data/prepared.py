"""Prepared data as a dataset: memory-mapped, shuffled anew each epoch, resumable."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embark_jax._base.storage import local
from embark_jax.data import manifest as manifests
from embark_jax.data import records as records_
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.manifest import MEND, SPLITS, Manifest, Part
from embark_jax.data.multi_hot import bags_of

WINDOW_BLOCKS = 64
"""Number of blocks that are shuffled together: 64 MiB, from all over the epoch."""
MOST_THREADS = 16
_OPEN_FILES = 1024
_OPEN_WINDOWS = 8


class PreparedData:
    """A ``Dataset`` that `embark data prepare` or `embark data synth` made.

    Which samples a batch has depends on seed, step and batch size alone. Blocks are
    shuffled over the epoch, and samples within windows of WINDOW_BLOCKS of these
    blocks. So files are read in blocks of a megabyte, and any batch is found without
    reading those before it. Within a batch, the samples of a window are in the order
    of the files: a step's result depends on it by rounding alone.

    A block's checksum is verified when it is read for the first time. A record is then
    copied once, from the file's memory into the batch, which is written in order.

    Args:
      folder: a folder with a ``manifest.json``.
      seed: determines the order of the training samples, anew in each epoch.
      threads: number of threads that gather a batch together; None takes one per core,
        up to MOST_THREADS.

    Raises:
      DataError: if the folder is not wholly prepared, or was damaged since. Methods
        that read samples raise it, too.
    """

    def __init__(self, folder: Path, *, seed: int = 0, threads: int | None = None):
        self.folder = local(folder)
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
        self._layout = self.manifest.layout()
        self._checked_rows = self.manifest.checked_rows()
        self._splits = {split: _blocks(self.manifest, split) for split in SPLITS}
        self._blocks = self._splits["train"]
        # One of each is in use at a time; a batch may span several windows.
        self._order = functools.lru_cache(maxsize=2)(self._make_order)
        self._window = functools.lru_cache(maxsize=_OPEN_WINDOWS)(self._make_window)
        self._open = functools.lru_cache(maxsize=_OPEN_FILES)(self._open_part)
        self._threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, "gather")

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of training step ``step`` (from 0); may span epochs."""
        pieces, first = [], step * batch_size
        position, stop = first, first + batch_size
        while position < stop:
            window, start = self._find(position)
            samples = np.sort(window.order[start : start + stop - position])
            pieces.append(_Piece(window, samples, position - first))
            position += len(samples)
        records = np.empty(batch_size, self._layout)
        self._gather(pieces, records_.whole(records))

        def row(sample: int) -> int:
            window, samples, start = next(
                piece for piece in reversed(pieces) if piece.start <= sample
            )
            index = samples[sample - start]
            number = int(np.searchsorted(window.starts, index, side="right")) - 1
            inside = int(index - window.starts[number])
            return self._blocks.first_row(window.blocks[number]) + inside

        return self._batch(records, "train", row)

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        """The whole validation set once, or None; the last batch may be shorter."""
        if not self.manifest.rows("validation"):
            return None
        return self.in_file_order("validation", batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """The whole test set once; the last batch may be shorter."""
        return self.in_file_order("test", batch_size)

    def in_file_order(self, split: str, batch_size: int) -> Iterator[Batch]:
        """A split once, in the order of its files; the last batch may be shorter."""
        blocks, total = self._splits[split], self.manifest.rows(split)
        held, block = np.empty(0, self._layout), 0
        for first in range(0, total, batch_size):
            size = min(batch_size, total - first)
            pieces, count = [held], len(held)
            while count < size:
                pieces.append(self._read(blocks, block).view(self._layout))
                count += len(pieces[-1])
                block += 1
            whole = [records_.whole(piece) for piece in pieces if len(piece)]
            joined = whole[0] if len(whole) == 1 else np.concatenate(whole)
            records = joined.view(self._layout)
            held = records[size:]
            yield self._batch(records[:size], split, first.__add__)

    def bayes_auc(self) -> float | None:
        """The best AUC, which is known for synthetic data only."""
        return self.manifest.bayes_auc

    def _find(self, position: int) -> tuple[_Window, int]:
        """The window of a training sample, and its position there."""
        epoch, place = divmod(position, self.train_samples)
        starts = self._order(epoch).starts
        number = int(np.searchsorted(starts, place, side="right")) - 1
        return self._window(epoch, number), place - int(starts[number])

    def _make_order(self, epoch: int) -> _Order:
        rng = np.random.default_rng([self._seed, epoch])
        blocks = rng.permutation(len(self._blocks.rows))
        ends = np.cumsum(self._blocks.rows[blocks])
        starts = np.concatenate([[0], ends[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS]])
        if starts[-1] != ends[-1]:
            starts = np.append(starts, ends[-1])
        return _Order(blocks, starts)

    def _make_window(self, epoch: int, window: int) -> _Window:
        start = window * WINDOW_BLOCKS
        blocks = np.sort(self._order(epoch).blocks[start : start + WINDOW_BLOCKS])
        starts = np.concatenate([[0], np.cumsum(self._blocks.rows[blocks])])
        shuffle = np.random.default_rng([self._seed, epoch, window])
        return _Window(blocks, starts, shuffle.permutation(int(starts[-1])))

    def _gather(self, pieces: Sequence[_Piece], target: np.ndarray) -> None:
        """Copies samples from the files' memory to a batch, a block at a time."""
        jobs = []
        for window, samples, start in pieces:
            ends = np.searchsorted(samples, window.starts)
            for number, (begin, end) in enumerate(itertools.pairwise(ends)):
                if begin < end:
                    rows = samples[begin:end] - window.starts[number]
                    to = target[start + begin : start + end]
                    jobs.append((window.blocks[number], rows, to))

        def copy(jobs: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> None:
            for block, rows, to in jobs:
                # "clip": NumPy buffers the whole result if it checks indices.
                self._read(self._blocks, block).take(rows, out=to, mode="clip")

        shares = [jobs[i :: self._threads] for i in range(self._threads)]
        for _ in self._pool.map(copy, shares):  # raises a thread's exception
            pass

    def _read(self, blocks: _Blocks, block: int) -> np.ndarray:
        """A block of whole records as it lies in the file, without copying."""
        part, first = blocks.parts[blocks.part[block]], int(blocks.first[block])
        size, file = int(blocks.rows[block]), part.file
        try:
            records = self._open(file, part.rows)[first : first + size]
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder / file}: {error}; {MEND}") from None
        if not blocks.checked[block]:
            if records_.checksum(records) != blocks.checksums[block]:
                raise DataError(
                    f"{self.folder / file}, rows {first} to {first + size - 1}: are "
                    "not as they were written, the file is damaged; `embark data "
                    f"verify {self.folder}` looks for more such; {MEND}"
                )
            blocks.checked[block] = True
        return records

    def _open_part(self, file: str, rows: int) -> np.ndarray:
        return records_.whole(records_.read(self.folder / file, self._layout, rows))

    def _batch(
        self, records: np.ndarray, split: str, row: Callable[[int], int]
    ) -> Batch:
        """Makes a batch of records; ``row`` gives their rows in the split."""

        def locate(sample: int) -> str:
            found = row(sample)
            for part in self.manifest.parts[split]:
                if found < part.rows:
                    return f"{self.folder / part.file}, row {found}"
                found -= part.rows
            raise IndexError(sample)

        batch = Batch.of(records, locate, self._checked_rows)
        features = self.manifest.features.items()
        if not any(feature.bags_of_one_id for _, feature in features):
            return batch
        ids = dict(batch.ids)
        for name, feature in features:
            if feature.bags_of_one_id:
                rows = self.table_rows[feature.table]
                one = ids[name][:, 0]
                ids[name] = bags_of(one, feature.table, rows, feature.hotness)
        return dataclasses.replace(batch, ids=ids)


class _Order(NamedTuple):
    """The blocks of an epoch in order, and the position where each window starts; the
    last start is the end of the epoch."""

    blocks: np.ndarray
    starts: np.ndarray


class _Window(NamedTuple):
    """Blocks that are shuffled together; where the samples of each start, and where the
    last ends; and the order in which batches take the samples."""

    blocks: np.ndarray
    starts: np.ndarray
    order: np.ndarray


class _Piece(NamedTuple):
    """A batch's samples of a window, in the order of the files, and the place of the
    first in the batch."""

    window: _Window
    samples: np.ndarray
    start: int


class _Blocks(NamedTuple):
    """For each block of a split: its part, its first row there, its rows, its checksum,
    and whether that was verified; and the parts, with the first row of each in the
    split."""

    parts: Sequence[Part]
    part_starts: np.ndarray
    part: np.ndarray
    first: np.ndarray
    rows: np.ndarray
    checksums: list[str]
    checked: np.ndarray

    def first_row(self, block: int) -> int:
        """The first row of a block, counted in the split."""
        return int(self.part_starts[self.part[block]] + self.first[block])


def _blocks(manifest: Manifest, split: str) -> _Blocks:
    parts = manifest.parts[split]
    found = [
        (number, first, min(manifest.block_rows, part.rows - first))
        for number, part in enumerate(parts)
        for first in range(0, part.rows, manifest.block_rows)
    ]
    part, first, rows = np.array(found, np.int64).reshape(-1, 3).T
    starts = np.cumsum([0, *(each.rows for each in parts)])
    checksums = [each for part in parts for each in part.checksums()]
    if len(checksums) != len(rows):
        raise DataError(
            f"the manifest has {len(checksums)} checksums of the {len(rows)} blocks of "
            f"{split!r}; {MEND}"
        )
    checked = np.zeros(len(rows), bool)
    return _Blocks(parts, starts, part, first, rows, checksums, checked)
