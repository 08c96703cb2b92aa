"""``embark predict``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import (
    Log,
    Step,
    TrustCode,
    check_outputs,
    counted_rows,
    end_like_ctrl_c,
    say,
    show_rows,
    write_table,
)


def predict(
    context: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="RUN|EXPORT", help="Folder of a trained model.")
    ],
    rows: Annotated[
        Path,
        typer.Option(
            "--in", help="CSV, Parquet or .jsonl file, or a folder of the former."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file to write; the terminal by default."),
    ] = None,
    log: Log = None,
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
    """Score raw rows: a line for each, with the probability of label 1, or of each.

    Of a two_tower or next_item it is a score that orders items; `embark recommend`
    finds the best of all items.
    """
    check_outputs([rows, log], out=out)
    end_like_ctrl_c(context)  # it may have files of the machine's temporary folder
    import pyarrow as pa

    from embark_jax._base.config import ConfigError
    from embark_jax.export import load_scorer

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{out}: must end in .csv or .parquet")
    scorer = load_scorer(folder, step, trust_code=trust_code)
    if log is not None:
        scorer.read_log(log)
    what = "score" if scorer.ranks_items else "probability"
    names = list(scorer.tasks or [what])
    if taken := sorted({*names} & {*(keep or ())}):
        raise ConfigError(
            f"--keep {taken[0]}: the {what} has this name; rename the column"
        )
    kept = scorer.rows.kept(rows, keep) if keep else None
    with warnings.catch_warnings(record=True) as caught, counted_rows() as progress:
        warnings.simplefilter("always")
        probabilities, metrics = scorer.evaluate(rows, progress)
    columns = probabilities.reshape(len(probabilities), -1)
    scored = dict(zip(names, columns.T, strict=True))
    if kept is not None:
        scored = {name: kept[name] for name in kept.column_names} | scored
    table = pa.table(scored)
    if out is None:
        show_rows(table)
    else:
        write_table(table, out)
    for warning in caught:
        say(f"warning: {warning.message}")
    for name, count in scorer.rows.cut.items():
        if count:
            say(
                f"warning: {name}: left out {count:,} values of lists that are too long"
            )
    if out is not None:
        many = "scores" if scorer.ranks_items else "probabilities"
        say(
            f"{many} of {len(columns):,} rows written to {out}, by the model of step "
            f"{scorer.step}"
        )
        tasks = (metrics.tasks or (metrics,)) if metrics else ()
        for name, task in zip(scorer.tasks or ["their labels"], tasks, strict=False):
            if task.auc is not None:
                loss = "" if scorer.ranks_items else f", loss {task.log_loss:.5f}"
                say(f"compared with {name}: AUC {task.auc:.5f}{loss}")
