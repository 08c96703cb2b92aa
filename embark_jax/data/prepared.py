"""Prepared data as a dataset: memory-mapped, shuffled anew each epoch, resumable."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError
from embark_jax._base.storage import in_bucket
from embark_jax.config import EmbeddingConfig, PreparedConfig, WindowsConfig
from embark_jax.data import manifest as manifests
from embark_jax.data import sample_files
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.event_lists import Histories
from embark_jax.data.manifest import MEND, SPLITS, Manifest, SampleFile
from embark_jax.data.multi_hot import bags_of
from embark_jax.data.pipeline import cores
from embark_jax.data.prepare import raw_rows
from embark_jax.data.source import Description
from embark_jax.data.table_values import TableValues

WINDOW_BLOCKS = 64
"""Number of blocks that are shuffled together: 64 MiB, from all over the epoch."""
MAX_THREADS = 16
_OPEN_FILES = 1024
_OPEN_WINDOWS = 8


class PreparedData:
    """A ``Dataset`` that `embark data prepare` or `embark data synth` made.

    Which samples a batch has depends on seed, step and batch size alone. Blocks are
    shuffled over the epoch, and samples within windows of WINDOW_BLOCKS of these
    blocks. So files are read in blocks of a megabyte, and any batch is found without
    reading those before it. Within a batch, the samples of a window are in the order
    of the files: a step's result depends on it by rounding alone.

    A file's checksum is verified when it is read for the first time. Samples are then
    copied from the file's memory into the batch, which is written in order.

    Args:
      folder: a folder with a ``manifest.json``; of one in a bucket, a copy on this
        machine is read.
      seed: determines the order of the training samples, anew in each epoch; None
        keeps that of the files.
      threads: number of threads that gather a batch together; None takes one per core,
        up to MAX_THREADS.
      manifest: manifest of some of the files alone; None takes all.

    Raises:
      DataError: if the folder is not wholly prepared, or was damaged since. Methods
        that read samples raise it, too.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        seed: int | None = 0,
        threads: int | None = None,
        manifest: Manifest | None = None,
    ):
        self.folder = local_copy(folder)
        self.manifest = manifests.load(self.folder) if manifest is None else manifest
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
        self._pieces = sample_files.pieces(self._layout)
        self._checked_rows = self.manifest.checked_rows()
        self._splits = {split: _blocks(self.manifest, split) for split in SPLITS}
        self._blocks = self._splits["train"]
        # One of each is in use at a time; a batch may span several windows.
        self._order = functools.lru_cache(maxsize=2)(self._make_order)
        self._window = functools.lru_cache(maxsize=_OPEN_WINDOWS)(self._make_window)
        self._open = functools.lru_cache(maxsize=_OPEN_FILES)(self._open_file)
        self._threads = threads or min(MAX_THREADS, cores())
        self._pool = ThreadPoolExecutor(self._threads, "gather")
        events = self.manifest.events
        self._histories = Histories(self.folder, events) if events else None

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the batch of training step ``step`` (from 0); may span epochs."""
        slices, first = [], step * batch_size
        position, stop = first, first + batch_size
        while position < stop:
            window, start = self._find(position)
            samples = np.sort(window.order[start : start + stop - position])
            slices.append(_Slice(window, samples, position - first))
            position += len(samples)
        records = np.empty(batch_size, self._layout)
        self._gather(slices, records)

        def row(sample: int) -> int:
            window, samples, start = next(
                slice_ for slice_ in reversed(slices) if slice_.start <= sample
            )
            index = samples[sample - start]
            number = int(np.searchsorted(window.starts, index, side="right")) - 1
            inside = int(index - window.starts[number])
            return self._blocks.first_row(window.blocks[number]) + inside

        return self._batch(records, "train", row)

    def validation_batches(self, batch_size: int) -> Iterator[Batch] | None:
        """Yields the whole validation set once, or None; the last batch may be
        shorter."""
        if not self.manifest.rows("validation"):
            return None
        return self.in_file_order("validation", batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yields the whole test set once; the last batch may be shorter."""
        return self.in_file_order("test", batch_size)

    def in_file_order(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields a split once, in the order of its files; the last batch may be
        shorter."""
        files, total = self._splits[split].files, self.manifest.rows(split)
        number, row = 0, 0  # the next sample's file, and its row there
        for first in range(0, total, batch_size):
            records = np.empty(min(batch_size, total - first), self._layout)
            filled = 0
            while filled < len(records):
                rows = slice(row, min(files[number].rows, row + len(records) - filled))
                target = records[filled : filled + rows.stop - rows.start]
                matrices = self._open(files[number]).items()
                some = {name: matrix[rows] for name, matrix in matrices}
                sample_files.fill(target, self._pieces, some)
                filled, row = filled + len(target), rows.stop
                if row == files[number].rows:
                    number, row = number + 1, 0
            yield self._batch(records, split, first.__add__)

    def shared_values(self, split: str, feature: str) -> pa.Array | None:
        """Returns the values of a feature, of one id a sample, for the samples of a
        split whose row of its table may be that of other values, too: null for others.

        Returns:
          ``[samples]`` values in the order of ``in_file_order``; None if each row of
          the table stands for one value at most.

        Raises:
          DataError: if the values were not kept, or are not as they were written.
        """
        table = self.manifest.features[feature].table
        meaning = TableValues(self.folder, self.manifest).meaning(table)
        if meaning.kind != "values" and not meaning.is_shared:
            return None
        columns = []
        for file in self.manifest.files[split]:
            if file.values is None:
                raise DataError(
                    f"{self.folder / file.file}: was prepared without the values of "
                    f"feature {feature!r}, some of which share a row; {MEND}"
                )
            path = file.values.verified(self.folder)
            columns.append(pq.read_table(path, columns=[feature]))
        whole = pa.concat_tables(columns, promote_options="permissive")
        return whole[feature].combine_chunks()

    def bayes_auc(self) -> float | None:
        """Returns the best AUC, which is known for synthetic data only."""
        return self.manifest.bayes_auc

    def _find(self, position: int) -> tuple[_Window, int]:
        """Returns the window of a training sample, and its position there."""
        epoch, sample = divmod(position, self.train_samples)
        starts = self._order(epoch).starts
        number = int(np.searchsorted(starts, sample, side="right")) - 1
        return self._window(epoch, number), sample - int(starts[number])

    def _make_order(self, epoch: int) -> _Order:
        blocks = np.arange(len(self._blocks.rows))
        if self._seed is not None:
            blocks = np.random.default_rng([self._seed, epoch]).permutation(blocks)
        ends = np.cumsum(self._blocks.rows[blocks])
        starts = np.concatenate([[0], ends[WINDOW_BLOCKS - 1 :: WINDOW_BLOCKS]])
        if starts[-1] != ends[-1]:
            starts = np.append(starts, ends[-1])
        return _Order(blocks, starts)

    def _make_window(self, epoch: int, window: int) -> _Window:
        start = window * WINDOW_BLOCKS
        blocks = np.sort(self._order(epoch).blocks[start : start + WINDOW_BLOCKS])
        starts = np.concatenate([[0], np.cumsum(self._blocks.rows[blocks])])
        order = np.arange(int(starts[-1]))
        if self._seed is not None:
            shuffle = np.random.default_rng([self._seed, epoch, window])
            order = shuffle.permutation(order)
        return _Window(blocks, starts, order)

    def _gather(self, slices: Sequence[_Slice], target: np.ndarray) -> None:
        """Copies samples from the files' memory to a batch: rows of each matrix, a
        block at a time, and then the matrices as wholes."""
        jobs = []
        for window, samples, start in slices:
            ends = np.searchsorted(samples, window.starts)
            for number, (begin, end) in enumerate(itertools.pairwise(ends)):
                if begin < end:
                    block = window.blocks[number]
                    first = self._blocks.first[block] - window.starts[number]
                    rows = samples[begin:end] + first
                    jobs.append((block, rows, slice(start + begin, start + end)))
        gathered = {
            name: np.empty(len(target), row)
            for name, row in sample_files.row_types(self._pieces).items()
        }

        def copy(jobs: Sequence[tuple[int, np.ndarray, slice]]) -> None:
            for block, rows, to in jobs:
                file = self._blocks.files[self._blocks.file[block]]
                for name, matrix in self._open(file).items():
                    # "clip": NumPy buffers the whole result if it checks indices.
                    matrix.take(rows, out=gathered[name][to], mode="clip")

        shares = [jobs[i :: self._threads] for i in range(self._threads)]
        for _ in self._pool.map(copy, shares):  # raises a thread's exception
            pass
        sample_files.fill(target, self._pieces, gathered)

    def _open_file(self, file: SampleFile) -> dict[str, np.ndarray]:
        path = self.folder / file.file
        try:
            return sample_files.read(path, self._pieces, file.rows, file.xxh3)
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{path}: {error}; {MEND}") from None

    def _batch(
        self, records: np.ndarray, split: str, row: Callable[[int], int]
    ) -> Batch:
        """Makes a batch of records; ``row`` gives their rows in the split."""

        def locate(sample: int) -> str:
            rest = row(sample)
            for file in self.manifest.files[split]:
                if rest < file.rows:
                    return f"{self.folder / file.file}, row {rest}"
                rest -= file.rows
            raise IndexError(sample)

        batch = Batch.of(records, locate, self._checked_rows)
        features = self.manifest.features.items()
        bags = any(feature.bags_of_one_id for _, feature in features)
        if not bags and self._histories is None:
            return batch
        ids = dict(batch.ids)
        if self._histories is not None:
            ids |= self._histories.of(records["events"], self._pool.map)
        for name, feature in features:
            if feature.bags_of_one_id:
                rows = self.table_rows[feature.table]
                one = ids[name][:, 0]
                ids[name] = bags_of(one, feature.table, rows, feature.hotness)
        return dataclasses.replace(batch, ids=ids)


def described(data: PreparedData, order: Mapping[str, Any]) -> Description:
    """Describes prepared data; ``order`` determines which samples a step has."""
    manifest = data.manifest

    def save_encoding(workdir: Path) -> None:
        folder = workdir / raw_rows.FOLDER
        raw_rows.save_encoding(data.folder, manifest, folder)

    return Description.of(
        data,
        labels=manifest.labels,
        dense_names=manifest.dense,
        order=order,
        missing_dense=manifest.missing_dense,
        values=TableValues(data.folder, manifest),
        shared_values=functools.partial(data.shared_values, SPLITS[2]),
        save_encoding=save_encoding if manifest.columns else None,
    )


class PreparedSource:
    """See ``Source``."""

    def __init__(self, section: PreparedConfig, embedding: EmbeddingConfig):
        self._section, self._embedding = section, embedding

    def open(self, seed: int) -> tuple[PreparedData, Description]:
        dataset = PreparedData(self._section.path, seed=seed)
        if self._section.dense_features not in (None, dataset.dense_features):
            raise ConfigError(
                f"data.dense_features: is {self._section.dense_features}, the data "
                f"have {dataset.dense_features}; leave it out, or correct it"
            )
        order = {"kind": self._section.kind, "files": dataset.manifest.digest()}
        return dataset, described(dataset, order)

    def absent(self) -> Description | None:
        return absent(self._section, self._embedding)


def absent(
    section: PreparedConfig | WindowsConfig, embedding: EmbeddingConfig
) -> Description | None:
    """Describes prepared data that are not on this machine; see ``Source``."""
    path = section.path
    if in_bucket(path) or Path(path).exists():
        return None
    need = f"{path} is not there; planning without the data needs it"
    if section.dense_features is None:
        raise ConfigError(
            f"data.dense_features: {need} (and rows and hotness under embedding), "
            "training needs the folder: `embark data prepare --out` makes one"
        )
    table_rows, features = embedding.declared(need)
    return Description(table_rows, features, section.dense_features, labels=None)


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


class _Slice(NamedTuple):
    """A batch's samples of a window, in the order of the files, and the index of the
    first in the batch."""

    window: _Window
    samples: np.ndarray
    start: int


class _Blocks(NamedTuple):
    """For each block of a split: its file, its first row there, and its rows; and the
    files, with the first row of each in the split."""

    files: Sequence[SampleFile]
    file_starts: np.ndarray
    file: np.ndarray
    first: np.ndarray
    rows: np.ndarray

    def first_row(self, block: int) -> int:
        """Returns the first row of a block, counted in the split."""
        return int(self.file_starts[self.file[block]] + self.first[block])


def _blocks(manifest: Manifest, split: str) -> _Blocks:
    files, size = manifest.files[split], manifest.block_rows
    blocks = [
        (number, first, min(size, file.rows - first))
        for number, file in enumerate(files)
        for first in range(0, file.rows, size)
    ]
    file, first, rows = np.array(blocks, np.int64).reshape(-1, 3).T
    starts = np.cumsum([0, *(file.rows for file in files)])
    return _Blocks(files, starts, file, first, rows)
