"""Prepared data in time windows: folders in the order of their names, or one folder
whose samples were cut by time.

Each window has as many steps as its samples fill batches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax._base.storage import local
from embark_jax.config import WindowsConfig
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import DatasetView
from embark_jax.data.manifest import Manifest
from embark_jax.data.prepared import PreparedData, PreparedSource, described
from embark_jax.data.source import Description
from embark_jax.data.table_values import TableValues

_NUMBER = re.compile(r"([0-9]+)")
NAME, FILES, END = "window", "window_files", "window_end"
"""Keys of a window in the record of its evaluation."""


class TimeWindow(NamedTuple):
    """A time window of the data.

    Attributes:
      name: its name, which no other has.
      folder: folder with its samples.
      begin: begin of the window, if the folder has several.
      first, end: its steps are ``first + 1 .. end``: it begins when ``first`` are done.
      files: digest of its samples.
    """

    name: str
    folder: Path
    begin: int | None
    first: int = 0
    end: int = 0
    files: str = ""

    @property
    def manifest(self) -> Manifest:
        """Returns the manifest of the window's samples.

        Raises:
          DataError: if the folder is damaged.
        """
        manifest = manifests.load(self.folder)
        return manifest if self.begin is None else manifest.of_window(self.begin)

    def numbered_rows(self) -> dict[str, int]:
        """Returns the rows that it needs, by table, where values get numbers."""
        tables = manifests.read(self.folder).tables.items()
        numbered = ("values", "ranges")
        return {n: table.rows for n, table in tables if table.kind in numbered}

    @property
    def record(self) -> dict[str, Any]:
        """What the record of its evaluation says of the window."""
        return {NAME: self.name, FILES: self.files, END: self.end}


class WindowsData(DatasetView):
    """Time windows; as a ``Dataset`` it is the first of them until it has steps, and is
    tested on the last.

    Args:
      path: a folder of prepared folders, or a prepared folder with windows.
      seed: determines the order of the samples in each window; None keeps that of the
        files.

    Attributes:
      windows: those that are there, in their order; with steps after ``schedule``.

    Raises:
      DataError: if there is no window yet, or the first is damaged.
    """

    def __init__(self, path: Path, *, seed: int | None = 0):
        self.path, self._seed = local(path), seed
        self.windows = _there(self.path)
        if not self.windows:
            raise DataError(
                f"{self.path}: has no window yet, must be a folder of prepared "
                "folders, or one that embark data prepare --window has made"
            )
        self._batch_size = 0
        self.first = self.open(self.windows[0])
        self._opened = self.windows[0].name, self.first
        super().__init__(self.first)

    def schedule(
        self,
        batch_size: int,
        passes: float = 1.0,
        first_step: int = 0,
        names: Collection[str] | None = None,
    ) -> None:
        """Gives each window its steps.

        Args:
          batch_size: samples of a step, over all processes.
          passes: passes over the samples of a window.
          first_step: number of steps before the first window.
          names: names of the windows, those that process 0 sees; None takes all.

        Raises:
          DataError: if a window fills no batch, does not follow the one before, or is
            not there.
        """
        windows = [w for w in self.windows if names is None or w.name in names]
        if names is not None and (missing := {*names} - {w.name for w in windows}):
            raise DataError(
                f"{self.path}: this process does not see {', '.join(sorted(missing))}"
            )
        for before, window in itertools.pairwise(windows):
            _check_follows(before, window)
        self._batch_size, self.windows = batch_size, []
        for window in windows:
            manifest = window.manifest
            samples = int(passes * manifest.rows("train"))
            if samples < batch_size:
                raise DataError(
                    f"{window.folder}: window {window.name} has {samples:,} samples, "
                    f"fewer than a batch of {batch_size:,}; make windows longer, or "
                    "lower train.batch_size"
                )
            end = first_step + samples // batch_size
            files = manifest.digest()
            self.windows.append(window._replace(first=first_step, end=end, files=files))
            first_step = end

    def check_trained(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Checks, after ``schedule``, that the windows that a run has begun to train on
        are as they were.

        Args:
          evaluations: records of its evaluations.

        Raises:
          DataError: if one has other samples or other steps, or is not there.
        """
        there = {window.name: window.record for window in self.windows}
        for record in evaluations:
            trained = {key: record[key] for key in (NAME, FILES, END) if key in record}
            if trained and there.get(trained[NAME]) != trained:
                raise DataError(
                    f"{self.path}: window {trained[NAME]} has other samples or steps, "
                    "or is not there, but the run has trained on it; bring it back, "
                    "with those before it alone, or begin a run from this one: "
                    "train.init_from"
                )

    @property
    def end(self) -> int:
        """The last step of all windows."""
        return self.windows[-1].end

    def at(self, step: int) -> TimeWindow:
        """Returns the window that the batch after ``step`` steps is of."""
        return next(window for window in reversed(self.windows) if window.first <= step)

    def open(self, window: TimeWindow) -> PreparedData:
        """Opens the samples of a window.

        Raises:
          DataError: if the folder is damaged.
        """
        return PreparedData(window.folder, seed=self._seed, window=window.begin)

    def data_at(self, step: int) -> PreparedData:
        """Opens the samples of the window that the batch after ``step`` steps is of.

        Raises:
          DataError: if it is damaged.
        """
        window = self.at(step)
        if self._opened[0] != window.name:
            self._opened = window.name, self.open(window)
        return self._opened[1]

    def save_encoding(self, step: int, workdir: Path) -> None:
        """Saves what encodes raw rows as in the window of a step, if its data say it:
        later windows know more values."""
        save = described(self.data_at(step), {}).save_encoding
        if save is not None:
            save(workdir)

    @property
    def last(self) -> PreparedData:
        """The samples of the last window."""
        return self.open(self.windows[-1])

    def train_batch(self, step: int, batch_size: int) -> Batch:
        if not self._batch_size:
            return self.first.train_batch(step, batch_size)
        processes = self._batch_size // batch_size
        step_of_all = step // processes
        first = self.at(step_of_all).first * processes
        return self.data_at(step_of_all).train_batch(step - first, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self.last.in_file_order("train", batch_size)


def _there(path: Path) -> list[TimeWindow]:
    """Returns the windows in a folder. A folder that is not wholly prepared yet, and
    those after it, are not."""
    if (path / manifests.FILE_NAME).exists():
        begins = manifests.read(path).windows
        return [TimeWindow(str(begin), path, begin) for begin in begins]
    if not path.is_dir():
        return []
    windows = []
    for folder in sorted(path.iterdir(), key=lambda path: _in_order(path.name)):
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        if not (folder / manifests.FILE_NAME).exists():
            break
        windows.append(TimeWindow(folder.name, folder, None))
    return windows


def _in_order(name: str) -> list[str | int]:
    """Returns the key by which names of folders are sorted: 2 comes before 10."""
    return [int(text) if text.isdecimal() else text for text in _NUMBER.split(name)]


def _check_follows(before: TimeWindow, window: TimeWindow) -> None:
    """Raises ``DataError`` if rows of tables stand for other values than in the window
    before."""
    if before.folder == window.folder:
        return
    there, here = (
        TableValues(w.folder, manifests.load(w.folder)) for w in (before, window)
    )
    if lines := there.changes(here, f"in window {before.name}"):
        raise DataError(
            f"{window.folder}: {'; '.join(lines)}; prepare it with --extend and the "
            "folder before"
        )


class WindowsSource(PreparedSource):
    """See ``Source``."""

    def open(self, seed: int) -> tuple[WindowsData, Description]:
        assert isinstance(self._section, WindowsConfig)
        order = seed if self._section.shuffle else None
        dataset = WindowsData(self._section.path, seed=order)
        return dataset, described(dataset.first, {"kind": self._section.kind})
