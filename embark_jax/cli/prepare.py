"""``embark data prepare`` and ``embark data synth``."""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from embark_jax._base.config import ConfigError, nearest
from embark_jax.cli import own_files
from embark_jax.cli.arguments import ZipfExponent, console, say
from embark_jax.config import ExperimentConfig, reading
from embark_jax.config.table_lists import experiment_of
from embark_jax.plans.tables import DYNAMIC_KEYS

if TYPE_CHECKING:
    from embark_jax.data.manifest import Manifest
    from embark_jax.planner import TableList

TRAINING = "train.yaml"
"""The config that ``synth`` writes to train on its data."""

Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Worker processes; one per core by default."),
]


class Split(StrEnum):
    time = "time"
    random = "random"


class OnBadLine(StrEnum):
    error = "error"
    skip = "skip"


class Missing(StrEnum):
    zero = "zero"
    mean = "mean"


def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            help="One of criteo-kaggle, criteo-1tb, avazu, taobao, movielens-100k, "
            "movielens-1m, csv or parquet."
        ),
    ],
    raw: Annotated[
        Path,
        typer.Option(
            help="Folder of the downloaded files; for csv and parquet also one file."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder to write; if it is incomplete, the command resumes."),
    ],
    split: Annotated[
        Split | None,
        typer.Option(
            help="How to split: time holds out the latest samples, random splits "
            "8:1:1; by default what is usual for the data set."
        ),
    ] = None,
    min_count: Annotated[
        int, typer.Option(min=1, help="Values that occur less often share one row.")
    ] = 1,
    max_rows: Annotated[
        int,
        typer.Option(
            min=2,
            help="Largest number of rows of a table; more values are hashed to it.",
        ),
    ] = 40_000_000,
    hashed: Annotated[
        bool, typer.Option("--hash", help="Hash the ids of every table to --max-rows.")
    ] = False,
    hash_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=ROWS]",
            help="Hash this column alone, to ROWS or --max-rows; ROWS may be keys, "
            "which makes 63 bits of a value for a dynamic table.",
        ),
    ] = None,
    on_bad_line: Annotated[
        OnBadLine,
        typer.Option(
            help="Stop at the first bad line, or skip bad lines and count them."
        ),
    ] = OnBadLine.error,
    workers: Workers = None,
    multi_hot: Annotated[
        bool,
        typer.Option("--multi-hot", help="For criteo-1tb: make the bags of MLPerf."),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="For csv and parquet: column of the label, label by default; given "
            "several times, of several labels."
        ),
    ] = None,
    positive_from: Annotated[
        float | None,
        typer.Option(
            help="For csv and parquet: labels, such as stars, count as 1 from this "
            "value on."
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(help="For csv and parquet: column of the weight of a sample."),
    ] = None,
    dense: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=TRANSFORM]",
            help="For csv and parquet: a column of numbers; TRANSFORM is log, "
            "standardize or quantiles:N.",
        ),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="For csv and parquet: a column of categories; by default all other "
            "columns are."
        ),
    ] = None,
    list_: Annotated[
        list[str] | None,
        typer.Option(
            "--list",
            metavar="NAME[=SEPARATOR]",
            help="For csv and parquet: a column of lists in text.",
        ),
    ] = None,
    sequence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=SEPARATOR]",
            help="For csv and parquet: lists whose order counts, the latest last.",
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=OTHER",
            help="For csv and parquet: a column that reads the table of another.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="For csv and parquet: a column to leave out."),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For csv and parquet: largest number of values of a list to keep.",
        ),
    ] = None,
    missing: Annotated[
        Missing, typer.Option(help="For csv and parquet: what missing numbers become.")
    ] = Missing.zero,
    time: Annotated[
        str | None,
        typer.Option(
            help="For csv and parquet: a column of times; the latest samples are held "
            "out."
        ),
    ] = None,
    split_column: Annotated[
        str | None,
        typer.Option(
            help="For csv and parquet: a column that says train, validation or test."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help="For csv and parquet: separator between columns of text; a comma by "
            "default."
        ),
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(
            help="For csv and parquet: a YAML file with all of these instead."
        ),
    ] = None,
) -> None:
    """Prepare a data set for training: ids, numbers, splits, memory-mapped files."""
    from embark_jax.data.prepare import run
    from embark_jax.data.prepare.datasets import DATASETS, Request

    if dataset not in DATASETS:
        raise ConfigError(f"dataset is {dataset!r}; {nearest(dataset, DATASETS)}")
    known = DATASETS[dataset]
    made_from: dict[str, Any] = {"dataset": dataset, "multi_hot": multi_hot}
    asked = own_files.columns_of(
        columns,
        label=label or (),
        positive_from=positive_from,
        weight=weight,
        dense=dense or (),
        missing=missing.value,
        feature=feature or (),
        list_=list_ or (),
        sequence=sequence or (),
        share=share or (),
        longest=longest,
        ignore=tuple(ignore or ()),
        time=time,
        split=split_column,
        separator=separator,
    )
    if dataset in ("csv", "parquet"):
        made_from["columns"] = asked.model_dump(mode="json")
    recipe = known.recipe(Request(raw, asked, multi_hot))
    usual = "time" if recipe.says_split else known.split
    options = run.Options(
        split=usual if split is None else split.value,
        min_count=min_count,
        max_rows=max_rows,
        hashed=hashed,
        hash_columns=own_files.hashed_of(hash_column or ()),
        on_bad_line=on_bad_line.value,
    )
    with _Stages() as stages:
        prepared = run.prepare(
            recipe,
            out,
            options,
            made_from,
            workers=workers,
            progress=stages.update,
        )
    manifest = prepared.manifest
    if prepared.already:
        say("already prepared, nothing was read: raw files and options are the same")
    if prepared.report is not None:
        own_files.show(prepared.report)
    _say_what(manifest, out)
    if manifest.raw_rows is not None:
        kept = sum(map(manifest.rows, manifest.parts))
        say(
            f"of {manifest.raw_rows:,} lines or rows of the raw files {kept:,} are "
            f"samples, {manifest.skipped_lines:,} are left out"
        )
    for name, count in manifest.missing_dense.items():
        share_missing = count / sum(map(manifest.rows, manifest.parts))
        say(f"column {name!r}: {count:,} missing values ({share_missing:.1%}) are 0")
    if manifest.skipped_lines:
        say(f"left out {manifest.skipped_lines:,} bad lines; the first of them:")
        for line in prepared.skipped[:5]:
            say(f"  {line}")


def synth(
    model: Annotated[
        str,
        typer.Option(
            help="Model to make data for: a file with a list of tables, or a name in "
            "configs/models/."
        ),
    ],
    rows: Annotated[int, typer.Option(min=1, help="Number of training samples.")],
    out: Annotated[
        Path,
        typer.Option(help="Folder to write; if it is incomplete, the command resumes."),
    ],
    test_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of test samples; a tenth of --rows by default."
        ),
    ] = None,
    zipf: ZipfExponent = None,
    scale: Annotated[
        float, typer.Option(min=0.0, help="Share of each table's rows to keep.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the samples and of the teacher.")
    ] = 0,
    workers: Workers = None,
) -> None:
    """Make synthetic data for a model: power-law ids, labels from a teacher model."""
    from embark_jax.data import SyntheticClicks
    from embark_jax.data.prepare import synthetic
    from embark_jax.planner import load_table_list
    from embark_jax.run.dataset import check_drawing_memory

    listed = load_table_list(model)
    tables, features = listed.specs()
    tables = [
        dataclasses.replace(table, rows=max(1, round(table.rows * scale)))
        for table in tables
    ]
    exponent = zipf if zipf is not None else listed.zipf_exponent or 0.0
    dense = listed.dense.features if listed.dense else 0
    made_from = {
        "tables": [[table.name, table.rows] for table in tables],
        "features": [dataclasses.asdict(feature) for feature in features],
        "dense_features": dense,
        "zipf_exponent": exponent,
        "train_samples": rows,
        "test_samples": test_rows or max(1, rows // 10),
        "seed": seed,
    }
    options = {k: v for k, v in made_from.items() if k not in ("tables", "features")}
    check_drawing_memory(features)
    data = SyntheticClicks(tables, features, **options)
    with _Stages() as stages:
        manifest = synthetic.write(
            data, out, made_from, workers=workers, progress=stages.update
        )
    _say_what(manifest, out)
    config = _training(listed, Path(model).stem, rows, out)
    reading.save(config, out / TRAINING)
    say(f"to train on them: embark train {out / TRAINING}")


def _training(listed: TableList, name: str, rows: int, out: Path) -> ExperimentConfig:
    """The config that trains a list's model. It leaves table sizes to the data, and its
    batch gives an epoch at least a hundred steps."""
    found = experiment_of(listed)
    for table in found["embedding"]["tables"].values():
        del table["rows"]
    if listed.batch is not None:
        found["train"]["batch_size"] = min(listed.batch, math.ceil(rows / 100))
    data = {"kind": "prepared", "path": out.resolve()}
    return ExperimentConfig.model_validate(found | {"name": name, "data": data})


def _say_what(manifest: Manifest, out: Path) -> None:
    samples = [f"{manifest.rows(split):,} {split}" for split in manifest.parts]
    counts = [rows for rows in manifest.table_rows.values() if rows != DYNAMIC_KEYS]
    tables = f"{sum(counts):,} rows of {len(counts)} tables"
    if by_key := len(manifest.table_rows) - len(counts):
        tables += f" and {by_key} tables of keys, which must be dynamic"
    say(f"{', '.join(samples)} samples, {tables}: {out}")


class _Stages:
    """Shows a progress bar for each stage."""

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
