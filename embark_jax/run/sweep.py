"""Sweeps: runs of one config with every combination of the values that it lists."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig, reading
from embark_jax.metrics.pointwise import NonFiniteLogitError
from embark_jax.run import experiment, training
from embark_jax.run.logs import LogError, read_metrics
from embark_jax.train.results import NonFiniteLossError

RESULTS = "results.csv"
SHOWN = {"test_auc": "test AUC", "test_log_loss": "test log loss"}
REPEATS = "seed"
"""Runs that differ only in this key share a line, with mean and spread."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
      values: values that it sets, by dotted key.
      config: config with these values.
    """

    values: Mapping[str, Any]
    config: ExperimentConfig

    @property
    def folder(self) -> str:
        """Name of its folder, such as "seed=0,train.steps=100"."""
        named = ",".join(f"{key}={_text(value)}" for key, value in self.values.items())
        return named.replace("/", "-")


def read_points(path: Path, overrides: Sequence[str] = ()) -> list[Point]:
    """Reads all combinations of values in a config's ``sweep``, the last key fastest.

    Args:
      path, overrides: as in ``reading.load``.

    Raises:
      ConfigError: if ``sweep`` lists nothing or a value twice, or a combination is no
        valid config.
    """
    swept = reading.load(path, overrides).sweep
    if not swept:
        raise ConfigError(
            f"{path}: sweep lists no values, must be such as "
            "sweep: {seed: [0, 1, 2], train.steps: [100, 200]}"
        )
    points = []
    for combination in itertools.product(*swept.values()):
        values = dict(zip(swept, combination, strict=True))
        points.append(Point(values, reading.load(path, overrides, values)))
    folders = [point.folder for point in points]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"{path}: sweep lists {folder} twice")
    return points


def run_sweep(
    points: Sequence[Point],
    workdir: Path,
    resume: bool,
    console: Console,
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Trains all points, each in a folder of its own in ``workdir``.

    A run whose loss is no longer finite counts as diverged, and the sweep continues.

    Args:
      points: result of ``read_points``.
      workdir: folder of the runs, which also gets ``results.csv``, rewritten after
        each run.
      resume: whether to keep the finished runs there, and continue an unfinished one.
      console: console that shows the runs and, at the end, a table of them.
      jobs: number of runs at a time; see ``train_points``.

    Returns:
      For each point, up to one that was ended early, its folder, values, and test
      metrics, or "diverged" with the error.

    Raises:
      FileExistsError: if ``workdir`` holds something and ``resume`` is false.
      ConfigError: if a folder in it holds a run of another config.
      DataError, CheckpointError: as in ``training.train``.
    """
    check_unused(workdir, resume, "sweep")
    for point in points:
        check_same(point.config, workdir / point.folder)
    largest = max((p.config for p in points), key=lambda config: config.mesh.devices)
    experiment.make_host_devices(largest)
    workdir.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    named = [(point.config, workdir / point.folder) for point in points]
    for point, record in zip(points, train_points(named, jobs, console), strict=False):
        if record is None:
            break
        results.append({"folder": point.folder, **point.values, **record})
        write_results(results, workdir / RESULTS)
    console.print(summary(points, results))
    return results


def check_unused(workdir: Path, resume: bool, what: str) -> None:
    """Raises FileExistsError if a new sweep, or whatever it is, finds files there."""
    if not resume and workdir.exists() and any(workdir.iterdir()):
        raise FileExistsError(
            f"{workdir} is not empty: pass --resume to continue the {what} in it, or "
            "another --workdir"
        )


def summary(points: Sequence[Point], results: Sequence[Mapping[str, Any]]) -> Table:
    """Makes a table with a line for each setting; several seeds give mean ±
    deviation."""
    keys = list(points[0].values)
    repeated = REPEATS in keys
    keys = [key for key in keys if key != REPEATS]
    table = Table(title="mean ± standard deviation" if repeated else None)
    for key in keys:
        table.add_column(key, overflow="fold")  # shown whole, however narrow
    for heading in ("runs", *SHOWN.values()) if repeated else SHOWN.values():
        table.add_column(heading, justify="right")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point, result in zip(points, results, strict=False):
        setting = _text([point.values[key] for key in keys])
        groups.setdefault(setting, []).append(result)
    for members in groups.values():
        cells = [_text(members[0][key]) for key in keys]
        if repeated:
            cells.append(str(len(members)))
        table.add_row(*cells, *(_mean_and_spread(members, key) for key in SHOWN))
    return table


def _mean_and_spread(results: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [result[key] for result in results if result.get(key) is not None]
    diverged = sum("diverged" in result for result in results)
    parts = []
    if values:
        parts.append(f"{np.mean(values):.5f}")
    if len(values) > 1:
        parts.append(f"± {np.std(values, ddof=1):.5f}")
    if diverged:
        parts.append(f"{diverged} diverged" if len(results) > 1 else "diverged")
    return " ".join(parts) or "–"


def check_same(config: ExperimentConfig, folder: Path) -> None:
    """Raises ``ConfigError`` if the folder holds a run of another config."""
    path = folder / "config.yaml"
    if path.exists() and reading.load(path) != config:
        raise ConfigError(
            f"{folder} holds a run of another config: sweep into another --workdir"
        )


def train_points(
    named: Sequence[tuple[ExperimentConfig, Path]],
    jobs: int,
    console: Console,
    first: int = 1,
) -> Iterator[dict[str, Any] | None]:
    """Yields what ``train_point`` returns for each config and folder, in order.

    Args:
      named: configs and folders of the runs.
      jobs: number of runs at a time. Several are processes of their own on the same
        devices and cores, and each writes what it shows to a file beside its folder.
      console: console that shows the runs.
      first: number of the first run.
    """
    if jobs == 1:
        for number, (config, folder) in enumerate(named, first):
            console.rule(f"run {number}: {folder.name}")
            yield train_point(config, folder, console)
        return
    # Each run has a process of its own: JAX sets up its devices once in a process.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, max_tasks_per_child=1) as pool:
        records = pool.map(_train_apart, *zip(*named, strict=True))
        for number, ((_, folder), record) in enumerate(
            zip(named, records, strict=True), first
        ):
            console.print(f"run {number} ended: {folder.name}")
            yield record


def _train_apart(config: ExperimentConfig, folder: Path) -> dict[str, Any] | None:
    with folder.with_name(f"{folder.name}.log").open("a", encoding="utf-8") as file:
        return train_point(config, folder, Console(file=file))


def train_point(
    config: ExperimentConfig, folder: Path, console: Console
) -> dict[str, Any] | None:
    """Returns the metrics of a finished run, or of one that is run to its end now;
    "diverged" with the error, if its loss is not finite; None if it was ended early."""
    with contextlib.suppress(LogError):  # resuming repairs a missing or damaged log
        records = read_metrics(folder)
        if records and records[-1].get("final"):
            console.print("finished earlier")
            return _metrics(records[-1])
    try:
        record = training.train(config, folder, folder.exists(), console)
    except (NonFiniteLossError, NonFiniteLogitError) as error:
        console.print(f"diverged: {error}", markup=False, highlight=False)
        return {"diverged": str(error).partition("\n")[0]}
    return None if record is None else _metrics(record)


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in record if key not in ("step", "final")}


def write_results(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes a line of CSV for each run, with the columns of all."""
    columns = dict.fromkeys(key for result in results for key in result)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(results)


def _text(value: Any) -> str:
    """Formats a value as in a config, but names without quotes."""
    return value if isinstance(value, str) else json.dumps(value)
