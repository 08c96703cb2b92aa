"""``embark predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embark_jax.cli.arguments import console, say


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|EXPORT", help="Folder of a trained model.")
    ],
    rows: Annotated[
        Path,
        typer.Option("--in", help="CSV or Parquet file, or a folder of them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file to write; the terminal by default."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Step of the checkpoint; by default the best, if known, or the newest."
        ),
    ] = None,
) -> None:
    """Score raw rows: print the probability of label 1, one line per row."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from embark_jax.config import ConfigError
    from embark_jax.export import load_scorer

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{out}: must end in .csv or .parquet")
    scorer = load_scorer(folder, step)
    probabilities, metrics = scorer.evaluate(rows)
    scored = pa.table({"probability": probabilities})
    if out is None:
        for value in probabilities:
            console.print(f"{value:.6g}", highlight=False)
    elif out.suffix == ".csv":
        pyarrow.csv.write_csv(scored, out)
    else:
        pyarrow.parquet.write_table(scored, out)
    for name, count in scorer.cut.items():
        if count:
            say(
                f"warning: {name}: left out {count:,} values of lists that are too long"
            )
    if out is not None:
        say(f"probabilities of {len(scored):,} rows written to {out}")
        if metrics is not None and metrics.auc is not None:
            say(
                f"compared with their labels: AUC {metrics.auc:.5f}, "
                f"loss {metrics.log_loss:.5f}"
            )
