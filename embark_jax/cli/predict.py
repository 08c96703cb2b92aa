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
    """Score raw rows: print the probability of label 1 (of each label), one line per
    row."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from embark_jax._base.config import ConfigError
    from embark_jax.export import load_scorer

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{out}: must end in .csv or .parquet")
    scorer = load_scorer(folder, step)
    probabilities, metrics = scorer.evaluate(rows)
    columns = probabilities.reshape(len(probabilities), -1)
    scored = pa.table(
        dict(zip(scorer.tasks or ["probability"], columns.T, strict=True))
    )
    if out is None:
        for row in columns:
            console.print("\t".join(f"{each:.6g}" for each in row), highlight=False)
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
        each = (metrics.tasks or (metrics,)) if metrics else ()
        for name, found in zip(scorer.tasks or ["their labels"], each, strict=False):
            if found.auc is not None:
                say(
                    f"compared with {name}: AUC {found.auc:.5f}, "
                    f"loss {found.log_loss:.5f}"
                )
