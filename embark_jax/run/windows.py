"""The steps of a run on data in time windows, of which more may appear.

Each window has as many steps as its samples fill batches. What a run knows of windows
that it has trained is in the records of its evaluations, so that their folders may go.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax.config import ExperimentConfig, WindowsConfig
from embark_jax.data import (
    Batch,
    DataError,
    TableValues,
    TimeWindow,
    WindowsData,
    in_order,
)
from embark_jax.data import manifest as manifests
from embark_jax.data.prepare.raw_rows import FOLDER as ENCODING
from embark_jax.data.prepared import PreparedData, described
from embark_jax.data.view import DatasetView
from embark_jax.launch.agreement import of_process_0
from embark_jax.launch.stopping import Stop, StoppedError
from embark_jax.plans.tables import TableSpec

POLL_S = 1.0
"""Seconds between two looks for a new window."""
NAME = "window"
FILES = "window_files"
END = "window_end"
"""Keys of a window in the record of its evaluation."""


class WindowSteps(NamedTuple):
    """The steps of a window.

    Attributes:
      name: name of the window.
      first, end: its steps are ``first + 1 .. end``: it begins when ``first`` are done.
      files: digest of its samples.
      window: the window; None if it was trained before, and has to be there no more.
    """

    name: str
    first: int
    end: int
    files: str
    window: TimeWindow | None

    @property
    def record(self) -> dict[str, Any]:
        """What the record of its evaluation says of the window."""
        return {NAME: self.name, FILES: self.files, END: self.end}


class RunWindows(DatasetView):
    """The windows of a run, and their batches by step.

    Args:
      data: the windows.
      config: config of the run.
      tables: tables of the model.
      first_step: number of steps before the first window.
    """

    def __init__(
        self,
        data: WindowsData,
        config: ExperimentConfig,
        tables: Sequence[TableSpec],
        first_step: int,
    ):
        super().__init__(data)
        assert isinstance(config.data, WindowsConfig)
        self._data = data
        self._tables = {table.name: table for table in tables}
        self._batch_size = config.train.batch_size
        self._passes = config.train.epochs or 1.0
        self._drops = config.embedding.on_bad_id != "error"
        self._wait_s = 60 * config.data.wait_minutes
        self._first_step = first_step
        self._last_step = first_step + (config.train.steps or sys.maxsize)
        self._windows: list[WindowSteps] = []
        self._opened: tuple[str, PreparedData] | None = None
        self._encoding: Path | None = None

    @property
    def end(self) -> int:
        """Last step of the windows that are known."""
        return self._windows[-1].end if self._windows else self._first_step

    @property
    def steps(self) -> int:
        """Last step that a run can train so far."""
        return min(self.end, self._last_step)

    def resume(
        self, records: Sequence[Mapping[str, Any]], step: int, workdir: Path
    ) -> None:
        """Takes over the windows that a run was evaluated on before ``step``.

        Args:
          records: those of its evaluations.
          step: step of the checkpoint.
          workdir: folder of the run, whose encoding later windows must continue.

        Raises:
          DataError: if the window of this step is not the one that was trained on.
        """
        self._encoding = workdir / ENCODING
        self._windows, first = [], self._first_step
        for record in records:
            if NAME in record:
                name, end, files = (record[key] for key in (NAME, END, FILES))
                self._windows.append(WindowSteps(name, first, end, files, None))
                first = end
        if not self._windows or step >= self.end:
            return
        last = self._windows[-1]
        window = next((w for w in self._data.look() if w.name == last.name), None)
        if window is None or window.manifest.digest() != last.files:
            problem = "is not there" if window is None else "has other samples"
            raise DataError(
                f"{self._data.path}: window {last.name} {problem}, which the run has "
                "begun to train on; bring it back as it was, to go on"
            )
        self._windows[-1] = last._replace(window=window)

    def look(self) -> bool:
        """Takes the next window, if it is there; all processes take the same.

        Raises:
          DataError: if it is damaged, fills no batch, does not follow the one before,
            or needs more rows than the model has.
        """
        name, problem = of_process_0(self._next())
        if problem:
            raise DataError(problem)
        if name is None:
            return False
        while not (there := [w for w in self._data.look() if w.name == name]):
            time.sleep(POLL_S)  # this process does not see yet what process 0 sees
        window = there[0]
        begin, end = self.end, self.end + self._steps_of(window)
        digest = window.manifest.digest()
        self._windows.append(WindowSteps(window.name, begin, end, digest, window))
        return True

    def _next(self) -> tuple[str | None, str]:
        """Returns the name of the window after those that are known, if it is there,
        and why it cannot be trained on."""
        trained = {window.name for window in self._windows}
        new = [window for window in self._data.look() if window.name not in trained]
        if not new:
            return None, ""
        window = new[0]
        if not trained:
            return window.name, ""
        last = self._windows[-1]
        if window.begin is None and in_order(window.name) < in_order(last.name):
            return None, (
                f"{window.folder}: window {window.name} appeared after {last.name} was "
                "trained on, which it comes before; windows are trained in their "
                "order: move it away, or give it a name behind"
            )
        if window.begin is None and (before := self._values_of(last)) is not None:
            there = f"in window {last.name}"
            if lines := before.changes(window.values, there):
                return None, (
                    f"{window.folder}: {'; '.join(lines)}; prepare it with --extend "
                    "and the folder before"
                )
        return window.name, ""

    def _values_of(self, last: WindowSteps) -> TableValues | None:
        """What the rows stand for in the last window, or in the run's encoding."""
        if last.window is not None:
            return last.window.values
        encoding = self._encoding
        if encoding is None or not (encoding / manifests.FILE_NAME).exists():
            return None
        return TableValues(encoding, manifests.read(encoding))

    def wait(self, stop: Stop) -> bool:
        """Waits until the next window is there; returns whether it came in time. A
        run that has done its last step waits for none.

        Raises:
          StoppedError: if the run is asked to end meanwhile.
          DataError: as ``look`` does.
        """
        if self.end >= self._last_step:
            return False
        deadline = time.monotonic() + self._wait_s
        while not self.look():
            if of_process_0(time.monotonic() >= deadline):
                return False
            if stop.requested:
                raise StoppedError
            time.sleep(POLL_S)
        return True

    def at(self, step: int) -> WindowSteps:
        """Returns the window that the batch after ``step`` steps is of."""
        return next(w for w in reversed(self._windows) if w.first <= step)

    @property
    def last(self) -> PreparedData:
        """The samples of the last window that is there."""
        return self._data.last

    def data_of(self, window: WindowSteps) -> PreparedData:
        """Opens the samples of a window."""
        if self._opened is None or self._opened[0] != window.name:
            assert window.window is not None
            self._opened = window.name, self._data.open(window.window)
        return self._opened[1]

    def save_encoding(self, step: int, workdir: Path) -> None:
        """Saves what encodes raw rows as in the window of a step, if its data say it:
        later windows know more values."""
        save = described(self.data_of(self.at(step)), {}).save_encoding
        if save is not None:
            save(workdir)

    def batches(self, window: WindowSteps, batch_size: int) -> Iterator[Batch]:
        """Yields all samples of a window once, in the order of its files."""
        return self.data_of(window).in_file_order("train", batch_size)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        processes = self._batch_size // batch_size
        window = self.at(step // processes)
        first = window.first * processes
        return self.data_of(window).train_batch(step - first, batch_size)

    def _steps_of(self, window: TimeWindow) -> int:
        """Returns the number of steps of a window.

        Raises:
          DataError: if they are none, or it needs more rows than the model has.
        """
        manifest = window.manifest
        samples = int(self._passes * manifest.rows("train"))
        if samples < self._batch_size:
            raise DataError(
                f"{window.folder}: window {window.name} has {samples:,} samples, fewer "
                f"than a batch of {self._batch_size:,}; make windows longer, or lower "
                "train.batch_size"
            )
        self._check_room(window)
        return samples // self._batch_size

    def check_room(self) -> None:
        """Raises ``DataError`` if a window that is there needs more rows than the model
        has, also if it comes late in the run."""
        for window in self._data.look():
            self._check_room(window)

    def _check_room(self, window: TimeWindow) -> None:
        for name, rows in self._numbered_rows(window).items():
            room = self._tables[name].keys
            if rows > room:
                raise DataError(
                    f"{window.folder}: needs {rows:,} rows of table {name!r}, the "
                    f"model has {room:,}; give the table room, "
                    f"embedding.tables.{name}.rows, in a new run: train.init_from lets "
                    "it go on from one before"
                )

    def room_warnings(self) -> list[str]:
        """Lists tables without room for new values, if more folders may come."""
        last = self._data.look()[-1]
        if last.begin is not None:
            return []
        return [
            f"table {name!r} has {rows:,} rows, and window {last.name} has values for "
            "all of them: the run ends at a window with new ones; give the table room, "
            f"embedding.tables.{name}.rows"
            for name, rows in self._numbered_rows(last).items()
            if rows == self._tables[name].keys
        ]

    def _numbered_rows(self, window: TimeWindow) -> dict[str, int]:
        """Returns the rows that a window needs, by table, where values get numbers."""
        if self._drops:
            return {}
        manifest = manifests.read(window.folder)
        fixed = {*manifest.hashed_tables, *manifest.numbered_tables}
        return {t: n for t, n in manifest.table_rows.items() if t not in fixed}
