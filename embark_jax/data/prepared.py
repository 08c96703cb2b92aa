"""Prepared data as a dataset: memory-mapped, shuffled anew each epoch, resumable."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from embark_jax._base.bucket_copy import local_copy
from embark_jax._base.config import ConfigError
from embark_jax._base.object_store import in_bucket
from embark_jax.config import EmbeddingConfig, PreparedConfig, WindowsConfig
from embark_jax.data import encoding
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import Dataset
from embark_jax.data.event_lists import EVENTS, Histories
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.source import Description
from embark_jax.data.table_values import TableValues

GROUP_BLOCKS = 64
"""Number of blocks that are shuffled together: 64 MiB, from all over the epoch."""
MAX_THREADS = 16
"""A batch is gathered by as many threads as there are cores, up to so many."""
OPEN_GROUPS = 8

Rows = range | np.ndarray
"""Numbers of samples of a split, in the order of its files."""


class PreparedData:
    """A ``Dataset`` that `embark data prepare` made.

    Which samples a batch has depends on seed, step and batch size alone. Blocks of a
    megabyte are shuffled over the epoch, and samples within groups of GROUP_BLOCKS of
    these blocks, so that any batch is found without reading those before it. Within a
    batch, the samples of a group are in the order of the files: a step's result depends
    on it by rounding alone.

    A file's checksum is verified when it is read for the first time. Then neighbouring
    samples are slices of its memory, and others are copied from it.

    Args:
      folder: a folder with a ``data.json``; of one in a bucket, a copy on this machine
        is read.
      seed: determines the order of the training samples, anew in each epoch; None
        keeps that of the files.
      window: begin of the time window whose samples alone are read; None reads all.

    Raises:
      DataError: if the folder is not wholly prepared, or was damaged since. Methods
        that read samples raise it, too.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        seed: int | None = 0,
        window: int | None = None,
    ):
        self.folder = local_copy(folder)
        self.manifest = manifests.load(self.folder)
        if window is not None:
            self.manifest = self.manifest.of_window(window)
        self._is_shuffled, self._seed = seed is not None, seed or 0
        self.table_rows = self.manifest.table_rows
        self.features = tuple(
            feature.spec(name) for name, feature in self.manifest.features.items()
        )
        self.dense_features = len(self.manifest.dense)
        self.train_samples = self.manifest.rows("train")
        if not self.train_samples:
            raise DataError(f"{self.folder}: has no training samples")
        self._layout = self.manifest.layout()
        self._types = self.manifest.matrix_types
        self._checked_rows = self.manifest.checked_rows()
        self._file_starts = {
            split: list(itertools.accumulate((f.rows for f in files), initial=0))
            for split, files in self.manifest.files.items()
        }
        self._blocks = self._training_blocks()
        # A batch may be of several groups, and of two epochs.
        self._epoch = functools.lru_cache(maxsize=2)(self._order_of_epoch)
        self._group = functools.lru_cache(maxsize=OPEN_GROUPS)(self._order_of_group)
        self._open = functools.cache(self._open_file)
        self._threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, "gather")
        events = self.manifest.events
        self._histories = Histories(self.folder, events) if events else None

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the batch of training step ``step`` (from 0); may span epochs."""
        position, parts = step * batch_size, []
        stop = position + batch_size
        while position < stop:
            rows = self._rows_from(position, stop - position)
            parts.append(rows)
            position += len(rows)
        rows = (
            parts[0]
            if len(parts) == 1
            else np.concatenate([np.asarray(part) for part in parts])
        )
        return self._batch("train", rows)

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
        total = self.manifest.rows(split)
        for first in range(0, total, batch_size):
            yield self._batch(split, range(first, min(first + batch_size, total)))

    def _training_blocks(self) -> np.ndarray:
        """Returns ``[blocks, 2]``: first row of each block, and number of its rows."""
        starts, size = self._file_starts["train"], self.manifest.block_rows
        return np.array(
            [
                (first, min(size, end - first))
                for start, end in itertools.pairwise(starts)
                for first in range(start, end, size)
            ]
        )

    def _rows_from(self, position: int, count: int) -> Rows:
        """Returns rows of the training samples from a position on: as many, or as there
        are up to the end of their group or epoch, in ascending order."""
        epoch, first = divmod(position, self.train_samples)
        if not self._is_shuffled:
            return range(first, min(first + count, self.train_samples))
        _, starts = self._epoch(epoch)
        group = int(np.searchsorted(starts, first, side="right")) - 1
        first -= int(starts[group])
        return np.sort(self._group(epoch, group)[first : first + count])

    def _order_of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the blocks in their order, and the position where each group of them
        starts."""
        shuffle = np.random.default_rng([self._seed, epoch])
        blocks = shuffle.permutation(len(self._blocks))
        ends = np.cumsum(self._blocks[blocks, 1])
        return blocks, np.append(0, ends[GROUP_BLOCKS - 1 : -1 : GROUP_BLOCKS])

    def _order_of_group(self, epoch: int, group: int) -> np.ndarray:
        """Returns the rows of a group in the order in which batches take them."""
        blocks, _ = self._epoch(epoch)
        chosen = np.sort(blocks[group * GROUP_BLOCKS : (group + 1) * GROUP_BLOCKS])
        rows = [np.arange(first, first + n) for first, n in self._blocks[chosen]]
        shuffle = np.random.default_rng([self._seed, epoch, group])
        return shuffle.permutation(np.concatenate(rows))

    def _read(self, split: str, rows: Rows) -> dict[str, np.ndarray]:
        """Returns the matrices of samples."""
        starts = self._file_starts[split]
        if isinstance(rows, range):
            number = bisect.bisect_right(starts, rows.start) - 1
            if rows.stop <= starts[number + 1]:
                first, stop = rows.start - starts[number], rows.stop - starts[number]
                matrices = self._open(split, number)
                return {name: matrix[first:stop] for name, matrix in matrices.items()}
            rows = np.asarray(rows)
        file = np.searchsorted(starts, rows, side="right") - 1
        gathered = {
            name: np.empty((len(rows), n), t) for name, (t, n) in self._types.items()
        }

        def copy(part: tuple[int, int]) -> None:
            begin, end = part
            number = int(file[begin])
            inside = rows[begin:end] - starts[number]
            for name, matrix in self._open(split, number).items():
                # "clip": NumPy buffers the whole result if it checks indices.
                matrix.take(inside, 0, gathered[name][begin:end], "clip")

        share = -(-len(rows) // self._threads)
        cuts = np.flatnonzero(np.diff(file)) + 1
        cuts = np.unique(np.concatenate([np.arange(0, len(rows), share), cuts]))
        parts = itertools.pairwise([*cuts.tolist(), len(rows)])
        for _ in self._pool.map(copy, parts):  # raises a thread's exception
            pass
        return gathered

    def _open_file(self, split: str, number: int) -> dict[str, np.ndarray]:
        return self.manifest.files[split][number].mapped(self.folder, self._types)

    def _batch(self, split: str, rows: Rows) -> Batch:
        def locate(sample: int) -> str:
            row, starts = int(rows[sample]), self._file_starts[split]
            number = bisect.bisect_right(starts, row) - 1
            file = self.manifest.files[split][number].file
            return f"{self.folder / file}, row {row - starts[number]}"

        matrices = self._read(split, rows)
        batch = Batch.of(self._layout, matrices, locate, self._checked_rows)
        features = self.manifest.features.items()
        changed: dict[str, Any] = {
            name: bags_of(
                np.asarray(batch.ids[name])[:, 0],
                feature.table,
                self.table_rows[feature.table],
                feature.hotness,
            )
            for name, feature in features
            if feature.bags_of_one_id
        }
        if self._histories is not None:
            changed |= self._histories.of(matrices[EVENTS], self._pool.map)
        if not changed:
            return batch
        return dataclasses.replace(batch, ids={**batch.ids, **changed})


def bags_of(ids: np.ndarray, table: str, rows: int, hotness: int) -> np.ndarray:
    """Makes bags of single ids, as MLPerf makes Criteo's click logs multi-hot.

    For each row of a table, MLPerf draws once the other ids of the bag that the row
    becomes, uniformly from the table, and writes all bags to disk: 3.8 TB
    (https://github.com/mlcommons/training/tree/master/recommendation_v2/torchrec_dlrm).
    Here those ids are a hash of the row, so reading makes them from one id.

    Args:
      ids: ``[samples]`` ids of the table.
      table: its name; other tables have other bags.
      rows: number of rows of the table.
      hotness: number of ids per bag.

    Returns:
      ``[samples, hotness]`` ids: each id, and then those that belong to it.
    """
    seed = np.uint64(zlib.crc32(table.encode()) << 32)
    counters = ids.astype(np.uint64)[:, None] * np.uint64(hotness) + seed
    counters = counters + np.arange(hotness, dtype=np.uint64)
    bags = splitmix64(counters * GOLDEN_GAMMA) % np.uint64(rows)
    bags[:, 0] = ids
    return bags.astype(ids.dtype)


def described(data: PreparedData, order: Mapping[str, Any]) -> Description:
    """Describes prepared data; ``order`` determines which samples a step has."""
    manifest = data.manifest

    def save_encoding(workdir: Path) -> None:
        folder = workdir / encoding.FOLDER
        encoding.save_encoding(data.folder, manifest, folder)

    return Description.of(
        data,
        labels=manifest.labels,
        order=order,
        missing_dense=manifest.missing_dense,
        values=TableValues(data.folder, manifest),
        save_encoding=save_encoding if manifest.columns else None,
    )


class PreparedSource:
    """See ``Source``."""

    def __init__(
        self, section: PreparedConfig | WindowsConfig, embedding: EmbeddingConfig
    ):
        self._section, self._embedding = section, embedding

    def open(self, seed: int) -> tuple[Dataset, Description]:
        dataset = PreparedData(self._section.path, seed=seed)
        if self._section.dense_features not in (None, dataset.dense_features):
            raise ConfigError(
                f"data.dense_features: is {self._section.dense_features}, the data "
                f"have {dataset.dense_features}; leave it out, or correct it"
            )
        order = {"kind": self._section.kind, "files": dataset.manifest.digest()}
        return dataset, described(dataset, order)

    def absent(self) -> Description | None:
        path = self._section.path
        if in_bucket(path) or Path(path).exists():
            return None
        need = f"{path} is not there; planning without the data needs it"
        if self._section.dense_features is None:
            raise ConfigError(
                f"data.dense_features: {need} (and rows and hotness under embedding), "
                "training needs the folder: `embark data prepare --out` makes one"
            )
        table_rows, features = self._embedding.declared(need)
        dense = self._section.dense_features
        return Description(table_rows, features, dense, labels=None)
