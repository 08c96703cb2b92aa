"""``embark data prepare``."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embark_jax.cli.arguments import progress_bars, say
from embark_jax.plans.options import (
    KNOWN_COLUMNS,
    OWN_FILES,
    RECIPES,
)
from embark_jax.plans.tables import HASHED_KEYS

if TYPE_CHECKING:
    from embark_jax.data.columns import Preparation
    from embark_jax.data.manifest import Manifest
    from embark_jax.prepare.recipe import Recipe

UNKNOWN_SHARE = 0.05
"""A warning needs this share of unknown values."""


def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help=f"One of {', '.join((*RECIPES, *KNOWN_COLUMNS))}; or csv or parquet, "
            "for files of your own.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Keys that say how samples are split and get rows, such as split=time "
            "or min_count=10; for csv and parquet also what columns are, such as "
            "label=clicked or dense.price=log. `embark keys prepare` explains all.",
        ),
    ] = None,
    *,
    raw: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the downloaded files; for csv and parquet also one file. "
            "movielens-100k fetches them if this is left out."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="New folder to write, which appears when all is done."),
    ],
    columns: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="For csv and parquet: a file with these keys. Columns that are not "
            "named are categories.",
        ),
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Earlier data: their values keep their rows, new ones get rows after "
            "those, and numbers keep their transforms.",
        ),
    ] = None,
) -> None:
    """Prepare a data set for training: ids, numbers, splits, memory-mapped files.

    For files of your own: embark data prepare csv label=clicked dense.price=log
    --raw clicks.csv --out prepared
    """
    from embark_jax._base.config import ConfigError
    from embark_jax.prepare import run

    if raw is None and dataset not in KNOWN_COLUMNS:
        raise ConfigError("--raw: is missing, must be the folder of the files")
    if columns is not None and dataset not in OWN_FILES:
        raise typer.BadParameter(
            f"the columns of {dataset} are known: --columns is for "
            f"{', '.join(OWN_FILES)}"
        )
    recipe, options = _described(dataset, raw, columns, overrides or ())
    made_from: dict[str, Any] = {"dataset": dataset}
    if dataset in OWN_FILES:
        of_all = {*run.options_of(options)}
        made_from["columns"] = options.model_dump(mode="json", exclude=of_all)
    with progress_bars() as progress:
        manifest, made = run.prepare(recipe, out, options, made_from, progress, extend)
    _say_what(manifest, out)
    samples = sum(map(manifest.rows, manifest.files))
    drawn, samples = manifest.negatives, samples - manifest.negatives
    alone = (manifest.raw_rows or 0) - samples - manifest.skipped_lines
    others = f", {alone:,} are events alone" * (alone > 0)
    others += f"; {drawn:,} negatives are drawn" * (drawn > 0)
    say(
        f"of {manifest.raw_rows:,} lines or rows of the raw files {samples:,} are "
        f"samples, {manifest.skipped_lines:,} are left out{others}"
    )
    _say_splits(manifest, options.min_count > 1 or options.unseen > 0)
    for name, count in manifest.missing_dense.items():
        say(f"column {name!r}: {count:,} missing values ({count / samples:.1%}) are 0")
    for name, (count, text) in made.merged.items() if dataset in OWN_FILES else ():
        say(
            f"column {name!r}: {count:,} texts such as {text!r:.80} are the same value "
            f"as others, or missing; features.{name}.text=true keeps each as it is"
        )
    if manifest.skipped_lines:
        say(f"left out {manifest.skipped_lines:,} bad lines; the first of them:")
        for line in made.told:
            say(f"  {line}")


def _say_what(manifest: Manifest, out: Path) -> None:
    samples = [f"{manifest.rows(split):,} {split}" for split in manifest.files]
    counts = [rows for rows in manifest.table_rows.values() if rows != HASHED_KEYS]
    tables = f"{sum(counts):,} rows of {len(counts)} tables"
    if by_key := len(manifest.table_rows) - len(counts):
        tables += f" and {by_key} tables of keys, which must be dynamic"
    windows = f", {n:,} windows" if (n := len(manifest.windows)) > 1 else ""
    say(f"{', '.join(samples)} samples{windows}, {tables}: {out}")


def _say_splits(manifest: Manifest, trains_unknown: bool) -> None:
    """Says from when samples are, and which columns have many unknown values."""
    rows = {split: manifest.rows(split) for split in manifest.files}
    if (trains := rows.pop("train")) < sum(rows.values()):
        say(
            f"warning: training has {trains:,} samples, validation and test have "
            f"{sum(rows.values()):,}; split=… chooses otherwise"
        )
    for split, facts in manifest.splits.items():
        if facts.times is not None:
            say(f"{split}: from {facts.times[0]} to {facts.times[1]}")
        for name, share in facts.unknown.items():
            if share >= UNKNOWN_SHARE:
                advice = "" if trains_unknown else "; unseen=0.01 trains it"
                say(
                    f"warning: column {name!r}: {share:.1%} of the values in {split} "
                    "have no row, as training samples have none or too few of them: "
                    f"they share one{advice}"
                )


def _described(
    dataset: str, raw: Path | None, file: Path | None, overrides: Sequence[str]
) -> tuple[Recipe, Preparation]:
    """Returns the recipe of a data set, and how it is prepared: as is usual, but for
    what a user says."""
    from embark_jax._base import yaml_text
    from embark_jax._base.config import ConfigError, nearest, read_text
    from embark_jax._base.validation import validated
    from embark_jax.data.columns import Columns, Preparation

    if dataset in RECIPES:
        recipe = pkgutil.resolve_name(RECIPES[dataset])(raw)
        usual = recipe.usual.model_copy(update={"history": recipe.history})
        options = validated(Preparation, usual.model_dump(), overrides, dataset)
        if options.history is not None and recipe.history is None:
            raise ConfigError(f"history: {dataset} has no events of users")
        return dataclasses.replace(recipe, history=options.history), options
    if dataset not in OWN_FILES:
        hint = nearest(dataset, (*RECIPES, *OWN_FILES))
        raise ConfigError(f"dataset is {dataset!r}; {hint}")
    text = "" if file is None else read_text(file)
    try:
        described = yaml_text.parse(text) or {}
    except ConfigError as error:
        raise ConfigError(f"{file}, {error}") from None
    if dataset in KNOWN_COLUMNS:
        described = pkgutil.resolve_name(KNOWN_COLUMNS[dataset]) | described
    columns = validated(Columns, described, overrides, str(file or "columns"))
    recipe = pkgutil.resolve_name(OWN_FILES[dataset])(raw, columns)
    split = columns.split or recipe.usual.split
    return recipe, columns.model_copy(update={"split": split})
