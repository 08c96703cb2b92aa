"""Prepared data in time windows: folders in the order of their names, of which more may
appear, or one folder whose samples were cut by time."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from embark_jax._base.storage import local
from embark_jax.config import EmbeddingConfig, WindowsConfig
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.manifest import Manifest
from embark_jax.data.prepared import PreparedData, absent, described
from embark_jax.data.source import Description
from embark_jax.data.table_values import TableValues
from embark_jax.data.view import DatasetView

_NUMBER = re.compile(r"([0-9]+)")


class TimeWindow(NamedTuple):
    """A time window of the data.

    Attributes:
      name: its name, which no other has.
      folder: folder with its samples.
      begin: begin of the window, if the folder has several.
    """

    name: str
    folder: Path
    begin: int | None

    @property
    def values(self) -> TableValues:
        """What the rows of the folder's tables stand for."""
        return TableValues(self.folder, manifests.load(self.folder))

    @property
    def manifest(self) -> Manifest:
        """Returns the manifest of the window's samples.

        Raises:
          DataError: if the folder is damaged.
        """
        return manifests.load(self.folder).of_window(self.begin)


class WindowsData(DatasetView):
    """Time windows; as a ``Dataset`` it is the first of them, tested on the last.

    Args:
      path: a folder of prepared folders, or a prepared folder with windows.
      seed: determines the order of the samples in each window; None keeps that of the
        files.

    Raises:
      DataError: if there is no window yet, or the first is damaged.
    """

    def __init__(self, path: Path, *, seed: int | None = 0):
        self.path, self._seed = local(path), seed
        windows = self.look()
        if not windows:
            raise DataError(
                f"{self.path}: has no window yet, must be a folder of prepared "
                "folders, or one that embark data prepare --window has made"
            )
        self.first = self.open(windows[0])
        super().__init__(self.first)

    def look(self) -> list[TimeWindow]:
        """Returns the windows that are there, in their order. A folder that is not
        wholly prepared yet, and those after it, are not."""
        if (self.path / manifests.FILE_NAME).exists():
            begins = manifests.read(self.path).windows
            return [TimeWindow(str(begin), self.path, begin) for begin in begins]
        if not self.path.is_dir():
            return []
        windows = []
        for folder in sorted(self.path.iterdir(), key=lambda path: in_order(path.name)):
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            if not (folder / manifests.FILE_NAME).exists():
                break
            windows.append(TimeWindow(folder.name, folder, None))
        return windows

    def open(self, window: TimeWindow) -> PreparedData:
        """Opens the samples of a window.

        Raises:
          DataError: if the folder is damaged.
        """
        manifest = window.manifest
        return PreparedData(window.folder, seed=self._seed, manifest=manifest)

    @property
    def last(self) -> PreparedData:
        """The samples of the last window that is there."""
        return self.open(self.look()[-1])

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return self.first.train_batch(step, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self.last.in_file_order("train", batch_size)


def in_order(name: str) -> list[str | int]:
    """Returns the key by which names of folders are sorted: 2 comes before 10."""
    return [int(text) if text.isdecimal() else text for text in _NUMBER.split(name)]


class WindowsSource:
    """See ``Source``."""

    def __init__(self, section: WindowsConfig, embedding: EmbeddingConfig):
        self._section, self._embedding = section, embedding

    def open(self, seed: int) -> tuple[WindowsData, Description]:
        order = seed if self._section.shuffle else None
        dataset = WindowsData(self._section.path, seed=order)
        description = described(dataset.first, {"kind": self._section.kind})

        def shared_values(feature: str) -> pa.Array | None:
            return dataset.last.shared_values("train", feature)

        return dataset, dataclasses.replace(description, shared_values=shared_values)

    def absent(self) -> Description | None:
        return absent(self._section, self._embedding)
