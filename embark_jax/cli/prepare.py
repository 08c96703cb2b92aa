"""``embark data prepare``."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from embark_jax.cli.arguments import console, say


class Split(StrEnum):
    time = "time"
    random = "random"


class OnBadLine(StrEnum):
    error = "error"
    skip = "skip"


def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            help="criteo-kaggle, criteo-1tb, avazu, taobao, movielens-100k, "
            "movielens-1m, csv or parquet."
        ),
    ],
    raw: Annotated[Path, typer.Option(help="Folder of the files as downloaded.")],
    out: Annotated[
        Path, typer.Option(help="Folder to fill; one that was begun is gone on with.")
    ],
    split: Annotated[
        Split | None,
        typer.Option(
            help="time holds out the latest samples, random 8:1:1; unless given, what "
            "is usual for the data set."
        ),
    ] = None,
    min_count: Annotated[
        int, typer.Option(min=1, help="Rarer values share one row.")
    ] = 1,
    max_rows: Annotated[
        int,
        typer.Option(min=2, help="A table with more values is hashed to so many rows."),
    ] = 40_000_000,
    hashed: Annotated[
        bool, typer.Option("--hash", help="Hash every table to --max-rows.")
    ] = False,
    on_bad_line: Annotated[
        OnBadLine,
        typer.Option(help="Stop at the first bad line, or leave them out and count."),
    ] = OnBadLine.error,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Pieces of files at once; unless given, one a core."),
    ] = None,
    multi_hot: Annotated[
        bool, typer.Option("--multi-hot", help="criteo-1tb: bags as MLPerf's.")
    ] = False,
    label: Annotated[
        str, typer.Option(help="csv, parquet: column of the label.")
    ] = "label",
    dense: Annotated[
        list[str] | None, typer.Option(help="csv, parquet: a column of numbers.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(help="csv, parquet: a column of categories; unless given, all."),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="csv, parquet: dense features as logarithms.")
    ] = False,
) -> None:
    """Prepare a data set for training: ids, log counts, splits, memory-mapped files."""
    from embark_jax.config import ConfigError, nearest
    from embark_jax.data.prepare import run
    from embark_jax.data.prepare.datasets import DATASETS, Columns, Request

    if dataset not in DATASETS:
        raise ConfigError(f"dataset is {dataset!r}; {nearest(dataset, DATASETS)}")
    known = DATASETS[dataset]
    options = run.Options(
        split=known.split if split is None else split.value,
        min_count=min_count,
        max_rows=max_rows,
        hashed=hashed,
        on_bad_line=on_bad_line.value,
    )
    made_from: dict[str, Any] = {"dataset": dataset, "multi_hot": multi_hot}
    columns = Columns(label, tuple(dense or ()), tuple(feature or ()), log)
    if dataset in ("csv", "parquet"):
        made_from["columns"] = dataclasses.asdict(columns)
    with _Stages() as stages:
        prepared = run.prepare(
            known.recipe(Request(raw, columns, multi_hot)),
            out,
            options,
            made_from,
            workers=workers,
            progress=stages.update,
        )
    manifest = prepared.manifest
    rows = sum(manifest.table_rows.values())
    say(
        ", ".join(f"{manifest.rows(split):,} {split}" for split in manifest.parts)
        + f" samples, {rows:,} rows of {len(manifest.table_rows)} tables: {out}"
    )
    if manifest.skipped_lines:
        say(f"left out {manifest.skipped_lines:,} bad lines; the first of them:")
        for line in prepared.skipped[:5]:
            say(f"  {line}")


class _Stages:
    """A bar for each stage."""

    def __init__(self):
        self._progress = Progress(
            TextColumn("{task.description:6}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {}

    def __enter__(self) -> _Stages:
        self._progress.start()
        return self

    def __exit__(self, *_) -> None:
        self._progress.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage)
        self._progress.update(self._tasks[stage], completed=done, total=total)
