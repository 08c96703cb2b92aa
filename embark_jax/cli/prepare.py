"""``embark data prepare``."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embark_jax.cli.arguments import progress_bars, say
from embark_jax.plans.options import (
    HISTORIES,
    KNOWN_COLUMNS,
    OWN_FILES,
    RECIPES,
    OnBadLine,
)
from embark_jax.plans.tables import HASHED_KEYS

if TYPE_CHECKING:
    from embark_jax.data.columns import Columns
    from embark_jax.data.manifest import Manifest

UNKNOWN_SHARE = 0.05
"""A warning needs this share of unknown values."""
KEYS = "keys"
"""Number of rows of a column that is hashed to keys of a dynamic table."""


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
            help="For csv and parquet: keys of --columns, such as label=clicked or "
            f"dense.price=log. For {' and '.join(HISTORIES)}: keys of histories, such "
            "as longest=100.",
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
            help="For csv and parquet: says which column is the label, which are "
            "numbers, which hold lists. All other columns are categories.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="BY[=SHARE]",
            help="How to split: time holds out the latest tenth, random and user a "
            "fifth of samples or of users, leave-one-out the last two events of each "
            "user, none nothing. A share, such as time=0.2, is halved into validation "
            "and test; time=2024-05-01,2024-05-08 says when these begin. By default "
            "what is usual for the data set.",
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
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cut samples into time windows of this length, in units of the column "
            "of times, or in seconds if these are dates; data.kind=windows trains on "
            "them in order.",
        ),
    ] = None,
    unseen: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.5,
            help="Share of values in training samples that are taken for unknown ones, "
            "such as 0.01: it trains the row that values share which training never "
            "saw.",
        ),
    ] = 0.0,
    extend: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Earlier data: their values keep their rows, new ones get rows after "
            "those, and numbers keep their transforms.",
        ),
    ] = None,
    on_bad_line: Annotated[
        OnBadLine,
        typer.Option(
            help="Stop at the first bad line, or skip bad lines and count them."
        ),
    ] = "error",
) -> None:
    """Prepare a data set for training: ids, numbers, splits, memory-mapped files.

    For files of your own: embark data prepare csv label=clicked dense.price=log
    --raw clicks.csv --out prepared
    """
    from embark_jax._base.config import ConfigError, nearest
    from embark_jax._base.validation import validated
    from embark_jax.data.columns import HistoryColumns
    from embark_jax.prepare import run

    made_from: dict[str, Any] = {"dataset": dataset}
    if raw is None and dataset not in KNOWN_COLUMNS:
        raise ConfigError("--raw: is missing, must be the folder of the files")
    if dataset in OWN_FILES:
        described = _columns(dataset, columns, overrides or ())
        made_from["columns"] = described.model_dump(mode="json")
        recipe = pkgutil.resolve_name(OWN_FILES[dataset])(raw, described)
    elif dataset not in RECIPES:
        hint = nearest(dataset, (*RECIPES, *OWN_FILES))
        raise ConfigError(f"dataset is {dataset!r}; {hint}")
    elif columns or (overrides and dataset not in HISTORIES):
        raise typer.BadParameter(
            f"the columns of {dataset} are known: --columns and KEY=VALUE are for "
            f"{', '.join(OWN_FILES)}"
        )
    else:
        recipe = pkgutil.resolve_name(RECIPES[dataset])(raw)
        if overrides and recipe.history is not None:
            given = recipe.history.model_dump()
            history = validated(HistoryColumns, given, overrides, dataset)
            recipe = dataclasses.replace(recipe, history=history)
            made_from["history"] = history.model_dump(mode="json")
    usual = recipe.usual
    hashed_to = {n: min(max_rows, rows or 0) for n, rows in usual.hash_columns.items()}
    options = run.Options(
        split=split or usual.split,
        min_count=min_count,
        max_rows=max_rows,
        hashed=hashed,
        hash_columns=hashed_to | _hashed(hash_column or ()),
        window=window or usual.window,
        unseen=unseen,
        on_bad_line=on_bad_line,
    )
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
    _say_splits(manifest, min_count > 1 or unseen > 0)
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
            f"{sum(rows.values()):,}; --split chooses otherwise"
        )
    for split, facts in manifest.splits.items():
        if facts.times is not None:
            say(f"{split}: from {facts.times[0]} to {facts.times[1]}")
        for name, share in facts.unknown.items():
            if share >= UNKNOWN_SHARE:
                advice = "" if trains_unknown else "; --unseen 0.01 trains it"
                say(
                    f"warning: column {name!r}: {share:.1%} of the values in {split} "
                    "have no row, as training samples have none or too few of them: "
                    f"they share one{advice}"
                )


def _hashed(options: Iterable[str]) -> dict[str, int | None]:
    """Returns the rows to which columns are hashed, as ``--hash-column`` says; None is
    ``--max-rows``."""
    from embark_jax._base.config import ConfigError

    hashed: dict[str, int | None] = {}
    for option in options:
        name, equals, rows = option.partition("=")
        if not equals:
            hashed[name] = None
        elif rows == KEYS:
            hashed[name] = HASHED_KEYS
        elif rows.isdecimal() and 2 <= int(rows) <= HASHED_KEYS:
            hashed[name] = int(rows)
        else:
            raise ConfigError(
                f"--hash-column {name}={rows}: {rows!r} is no number of rows, must be "
                f"a whole number from 2 on, or {KEYS}, for a dynamic table"
            )
    return hashed


def _columns(dataset: str, file: Path | None, overrides: Sequence[str]) -> Columns:
    """Reads what is known of the columns of a data set, and what a user says of
    them."""
    from embark_jax._base import yaml_text
    from embark_jax._base.config import ConfigError, read_text
    from embark_jax._base.validation import validated
    from embark_jax.data.columns import Columns

    text = "" if file is None else read_text(file)
    try:
        described = yaml_text.parse(text) or {}
    except ConfigError as error:
        raise ConfigError(f"{file}, {error}") from None
    if dataset in KNOWN_COLUMNS:
        described = pkgutil.resolve_name(KNOWN_COLUMNS[dataset]) | described
    return validated(Columns, described, overrides, str(file or "columns"))
