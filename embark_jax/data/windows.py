"""Prepared data in time windows: folders in the order of their names, or one folder
whose samples were cut by time.

Each window has as many steps as its samples fill batches. What a run knows of windows
that it has trained is in the records of its evaluations, so that their folders may go.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
NAME, FILES, END = "window", "window_files", "window_end"
"""Keys of a window in the record of its evaluation."""


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

    def numbered_rows(self) -> dict[str, int]:
        """Returns the rows that it needs, by table, where values get numbers."""
        manifest = manifests.read(self.folder)
        fixed = {*manifest.hashed_tables, *manifest.numbered_tables}
        return {t: n for t, n in manifest.table_rows.items() if t not in fixed}


class WindowSteps(NamedTuple):
    """The steps of a window.

    Attributes:
      name: name of the window.
      first, end: its steps are ``first + 1 .. end``: it begins when ``first`` are done.
      files: digest of its samples.
      window: the window; None if it was trained before, and is there no more.
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


class WindowsData(DatasetView):
    """Time windows; as a ``Dataset`` it is the first of them until it has steps, and is
    tested on the last.

    Args:
      path: a folder of prepared folders, or a prepared folder with windows.
      seed: determines the order of the samples in each window; None keeps that of the
        files.

    Attributes:
      windows: those that are there, in their order.
      steps: the steps of each, once ``schedule`` has given them.

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
        self.steps: list[WindowSteps] = []
        self._batch_size, self._passes, self._first_step = 0, 1.0, 0
        self.first = self.open(self.windows[0])
        self._opened = self.windows[0].name, self.first
        super().__init__(self.first)

    def keep(self, names: Collection[str]) -> None:
        """Leaves out other windows: all processes of a run train on the same.

        Raises:
          DataError: if one of these is not there.
        """
        self.windows = [window for window in self.windows if window.name in names]
        if missing := {*names} - {window.name for window in self.windows}:
            raise DataError(
                f"{self.path}: this process does not see {', '.join(sorted(missing))}"
            )

    def schedule(
        self, batch_size: int, passes: float = 1.0, first_step: int = 0
    ) -> None:
        """Gives each window its steps.

        Args:
          batch_size: samples of a step, over all processes.
          passes: passes over the samples of a window.
          first_step: number of steps before the first window.

        Raises:
          DataError: if a window fills no batch, or does not follow the one before.
        """
        self._batch_size, self._passes = batch_size, passes
        self._first_step = first_step
        self.steps = self._after([], None)

    def resume(
        self, evaluations: Sequence[Mapping[str, Any]], step: int, encoding: Path
    ) -> None:
        """Goes on with a run, after ``schedule``: windows that it was evaluated on keep
        their steps, and others come behind.

        Args:
          evaluations: records of its evaluations.
          step: number of its steps.
          encoding: its encoding, which later windows must continue.

        Raises:
          DataError: as ``schedule`` and ``data_at`` do.
        """
        there = {window.name: window for window in self.windows}
        trained: list[WindowSteps] = []
        first = self._first_step
        for record in evaluations:
            if NAME in record:
                name, end, files = record[NAME], record[END], record[FILES]
                trained.append(WindowSteps(name, first, end, files, there.get(name)))
                first = end
        self.steps = self._after(trained, encoding)
        if step < self.end:
            self.data_at(step)

    def _after(
        self, trained: Sequence[WindowSteps], encoding: Path | None
    ) -> list[WindowSteps]:
        """Returns the windows that were trained, followed by the others."""
        known = {steps.name for steps in trained}
        all_steps = list(trained)
        for window in self.windows:
            if window.name in known:
                continue
            if all_steps and window.begin is None:
                _check_follows(window, all_steps[-1], encoding)
            manifest = window.manifest
            samples = int(self._passes * manifest.rows("train"))
            if samples < self._batch_size:
                raise DataError(
                    f"{window.folder}: window {window.name} has {samples:,} samples, "
                    f"fewer than a batch of {self._batch_size:,}; make windows longer, "
                    "or lower train.batch_size"
                )
            first = all_steps[-1].end if all_steps else self._first_step
            end = first + samples // self._batch_size
            digest = manifest.digest()
            all_steps.append(WindowSteps(window.name, first, end, digest, window))
        return all_steps

    @property
    def end(self) -> int:
        """The last step of all windows."""
        return self.steps[-1].end

    def at(self, step: int) -> WindowSteps:
        """Returns the window that the batch after ``step`` steps is of."""
        return next(steps for steps in reversed(self.steps) if steps.first <= step)

    def open(self, window: TimeWindow) -> PreparedData:
        """Opens the samples of a window.

        Raises:
          DataError: if the folder is damaged.
        """
        manifest = window.manifest
        return PreparedData(window.folder, seed=self._seed, manifest=manifest)

    def data_at(self, step: int) -> PreparedData:
        """Opens the samples of the window that the batch after ``step`` steps is of.

        Raises:
          DataError: if it is not there, is damaged, or has other samples than when it
            was begun.
        """
        name, _, _, files, window = self.at(step)
        if self._opened[0] != name or self._opened[1].manifest.digest() != files:
            if window is None or window.manifest.digest() != files:
                problem = "is not there" if window is None else "has other samples"
                raise DataError(
                    f"{self.path}: window {name} {problem}, which the run has begun to "
                    "train on; bring it back as it was, to go on"
                )
            self._opened = name, self.open(window)
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
        if not self.steps:
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


def _check_follows(
    window: TimeWindow, last: WindowSteps, encoding: Path | None
) -> None:
    """Raises ``DataError`` if a window cannot be trained after another one, which is
    gone if it was trained long ago: the run's encoding says what its rows stand for."""
    if _in_order(window.name) < _in_order(last.name):
        raise DataError(
            f"{window.folder}: window {window.name} appeared after {last.name} was "
            "trained on, which it comes before; windows are trained in their order: "
            "move it away, or give it a name behind"
        )
    if last.window is not None:
        before = last.window.values
    elif encoding is not None and (encoding / manifests.FILE_NAME).exists():
        before = TableValues(encoding, manifests.read(encoding))
    else:
        return
    if lines := before.changes(window.values, f"in window {last.name}"):
        raise DataError(
            f"{window.folder}: {'; '.join(lines)}; prepare it with --extend and the "
            "folder before"
        )


def _in_order(name: str) -> list[str | int]:
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
