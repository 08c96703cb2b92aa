"""``embark predict``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from embark_jax.cli.arguments import (
    Step,
    TrustCode,
    check_outputs,
    end_like_ctrl_c,
    say,
)
from embark_jax.cli.errors import printable


def predict(
    context: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="RUN|EXPORT", help="Folder of a trained model.")
    ],
    rows: Annotated[
        Path,
        typer.Option("--in", help="CSV or Parquet file, or a folder of them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file to write; the terminal by default."),
    ] = None,
    step: Step = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of the rows to write beside the probability, such as their "
            "id; may be given several times.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Score raw rows: print the probability of label 1 (of each label), one line per
    row."""
    check_outputs([rows], out=out)
    end_like_ctrl_c(context)  # it may have files of the machine's temporary folder
    from embark_jax._base.config import ConfigError
    from embark_jax.export import load_scorer

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{out}: must end in .csv or .parquet")
    scorer = load_scorer(folder, step, trust_code=trust_code)
    names = list(scorer.tasks or ["probability"])
    if taken := sorted({*names} & {*(keep or ())}):
        raise ConfigError(
            f"--keep {taken[0]}: the probability has this name; rename the column"
        )
    kept = scorer.kept(rows, keep) if keep else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probabilities, metrics = scorer.evaluate(rows)
    columns = probabilities.reshape(len(probabilities), -1)
    scored = dict(zip(names, columns.T, strict=True))
    if kept is not None:
        scored = {name: kept[name] for name in kept.column_names} | scored
    _write(scored, out)
    for warning in caught:
        say(f"warning: {warning.message}")
    for name, count in scorer.cut.items():
        if count:
            say(
                f"warning: {name}: left out {count:,} values of lists that are too long"
            )
    if out is not None:
        say(
            f"probabilities of {len(columns):,} rows written to {out}, by the model of "
            f"step {scorer.step}"
        )
        tasks = (metrics.tasks or (metrics,)) if metrics else ()
        for name, task in zip(scorer.tasks or ["their labels"], tasks, strict=False):
            if task.auc is not None:
                say(
                    f"compared with {name}: AUC {task.auc:.5f}, "
                    f"loss {task.log_loss:.5f}"
                )


def _write(columns: Mapping[str, Any], out: Path | None) -> None:
    """Writes columns to a file, or their rows to the terminal.

    Raises:
      ConfigError: if a kept column cannot be in such a file.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from embark_jax._base.config import ConfigError
    from embark_jax._base.files import replacing

    table = pa.table(dict(columns))
    if out is None:
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            print("\t".join(map(_text, row)))
        return
    try:
        with replacing(out.resolve()) as scratch:
            if out.suffix == ".csv":
                pyarrow.csv.write_csv(table, scratch)
            else:
                pyarrow.parquet.write_table(table, scratch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"{out}: cannot hold a column of --keep ({error}); write .parquet"
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")
