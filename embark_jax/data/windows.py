"""Prepared data whose samples were cut into time windows, which come in their order.

Each window has as many steps as its samples fill batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax.config import WindowsConfig
from embark_jax.data.batch import Batch, DataError
from embark_jax.data.dataset import DatasetView
from embark_jax.data.prepared import PreparedData, PreparedSource, described
from embark_jax.data.source import Description


class TimeWindow(NamedTuple):
    """A time window of the data.

    Attributes:
      begin: its begin, in units of the column of times.
      first, end: its steps are ``first + 1 .. end``: it begins when ``first`` are done.
    """

    begin: int
    first: int = 0
    end: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """What the record of its evaluation says of the window."""
        return {"window": str(self.begin), "window_end": self.end}


class WindowsData(DatasetView):
    """Time windows; as a ``Dataset`` it is the first of them until it has steps, and is
    tested on the last.

    Args:
      path: a prepared folder with windows.
      seed: determines the order of the samples in each window; None keeps that of the
        files.

    Attributes:
      windows: all of them, in their order; with steps after ``schedule``.

    Raises:
      DataError: if the folder is damaged, or has no windows.
    """

    def __init__(self, path: Path, *, seed: int | None = 0):
        self._path, self._seed = path, seed
        whole = PreparedData(path, seed=seed)
        self.manifest = whole.manifest
        self.windows = [TimeWindow(n) for n in self.manifest.windows if n is not None]
        if not self.windows:
            raise DataError(
                f"{path}: has no time windows; `embark data prepare window=…` makes "
                "them, and data.kind prepared takes data without"
            )
        self._batch_size = 0
        self._opened = self.windows[0].begin, self.open(self.windows[0])
        super().__init__(self._opened[1])

    def schedule(
        self, batch_size: int, passes: float = 1.0, first_step: int = 0
    ) -> None:
        """Gives each window its steps.

        Args:
          batch_size: samples of a step, over all processes.
          passes: passes over the samples of a window.
          first_step: number of steps before the first window.

        Raises:
          DataError: if a window fills no batch.
        """
        self._batch_size, windows = batch_size, self.windows
        self.windows = []
        for window in windows:
            samples = int(passes * self.manifest.of_window(window.begin).rows("train"))
            if samples < batch_size:
                raise DataError(
                    f"{self._path}: window {window.begin} has {samples:,} samples, "
                    f"fewer than a batch of {batch_size:,}; make windows longer, or "
                    "lower train.batch_size"
                )
            end = first_step + samples // batch_size
            self.windows.append(TimeWindow(window.begin, first_step, end))
            first_step = end

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
        return PreparedData(self._path, seed=self._seed, window=window.begin)

    def data_at(self, step: int) -> PreparedData:
        """Opens the samples of the window that the batch after ``step`` steps is of.

        Raises:
          DataError: if it is damaged.
        """
        window = self.at(step)
        if self._opened[0] != window.begin:
            self._opened = window.begin, self.open(window)
        return self._opened[1]

    def train_batch(self, step: int, batch_size: int) -> Batch:
        if not self._batch_size:
            return self._dataset.train_batch(step, batch_size)
        processes = self._batch_size // batch_size
        step_of_all = step // processes
        first = self.at(step_of_all).first * processes
        return self.data_at(step_of_all).train_batch(step - first, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return self.open(self.windows[-1]).in_file_order("train", batch_size)


class WindowsSource(PreparedSource):
    """See ``Source``."""

    def open(self, seed: int) -> tuple[WindowsData, Description]:
        assert isinstance(self._section, WindowsConfig)
        order = seed if self._section.shuffle else None
        dataset = WindowsData(self._section.path, seed=order)
        data = dataset.open(dataset.windows[0])
        files = dataset.manifest.digest()
        return dataset, described(data, {"kind": self._section.kind, "files": files})
