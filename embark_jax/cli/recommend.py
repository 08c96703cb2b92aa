"""``embark recommend``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from embark_jax.cli.jax_setup import set_up_jax

if TYPE_CHECKING:
    import pyarrow as pa

    from embark_jax.export import Scorer

FORMATS = (".csv", ".parquet", ".jsonl")


def recommend(
    context: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="RUN|EXPORT", help="Folder of a trained model.")
    ],
    rows: Annotated[
        Path,
        typer.Option(
            "--in",
            help="CSV, Parquet or .jsonl file with rows of users, or a folder; columns "
            "of the item may be missing.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .csv or .parquet file, with a line for each item, or a .jsonl "
            "file, with one for each row; the terminal by default."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Items for each row.")] = 10,
    exclude: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Leave out the items that this column of the row has, such as its "
            "history.",
        ),
    ] = None,
    seen: Annotated[
        Path | None,
        typer.Option(
            help="Leave out the items that this CSV, Parquet or .jsonl file has of a "
            "user: it has the columns of --user and of the item."
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column of the user; it is written, too."
        ),
    ] = None,
    log: Log = None,
    step: Step = None,
    trust_code: TrustCode = False,
) -> None:
    """Find the K best of all items for each row, with a model that ranks items."""
    check_outputs([rows, seen, log], out=out)
    end_like_ctrl_c(context)
    from embark_jax._base.config import ConfigError
    from embark_jax.export import load_scorer

    if out is not None and out.suffix not in FORMATS:
        raise ConfigError(f"{out}: must end in {', '.join(FORMATS)}")
    if seen is not None and (user is None or exclude is not None):
        raise ConfigError("--seen: needs --user, and takes the place of --exclude")
    set_up_jax(say)
    scorer = load_scorer(folder, step, trust_code=trust_code)
    if log is not None:
        scorer.read_log(log)
    users = None if user is None else scorer.rows.kept(rows, [user])[user].to_pylist()
    hidden: Any = exclude
    if seen is not None:
        hidden = _seen_by(scorer, seen, user, users)
    with counted_rows() as progress:
        items, scores = scorer.recommend(rows, k, hidden, progress)
    names = range(len(items)) if users is None else users
    table = _table(user or "row", names, items, scores)
    if out is None:
        show_rows(_one_by_one(table))
        return
    write_table(table if out.suffix == ".jsonl" else _one_by_one(table), out)
    say(
        f"items for {len(items):,} rows written to {out}, by the model of step "
        f"{scorer.step}"
    )


def _seen_by(scorer: Scorer, path: Path, user: Any, users: Any) -> list[list[Any]]:
    """Returns the items that a file has of the user of each row."""
    table = scorer.rows.kept(path, [user, scorer.item])
    names = scorer.rows.written(user, table[user])
    items_of_user = defaultdict(list)
    for name, item in zip(names, table[scorer.item].to_pylist(), strict=True):
        items_of_user[name].append(item)
    return [items_of_user[name] for name in scorer.rows.written(user, users)]


def _table(
    name: str, names: Iterable[Any], items: list[list[Any]], scores: Any
) -> pa.Table:
    """Returns a table of lists of items and their scores."""
    import pyarrow as pa

    products = [row[: len(of)].tolist() for row, of in zip(scores, items, strict=True)]
    return pa.table({name: pa.array([*names]), "item": items, "score": products})


def _one_by_one(table: pa.Table) -> pa.Table:
    """Returns the items of a table's lists in rows of their own, with their ranks."""
    import pyarrow as pa

    name, *lists = table.column_names
    lengths = [len(items) for items in table["item"].to_pylist()]
    places = [row for row, length in enumerate(lengths) for _ in range(length)]
    ranks = [rank for length in lengths for rank in range(1, length + 1)]
    flat = {each: table[each].combine_chunks().flatten() for each in lists}
    return pa.table({name: table[name].take(places), "rank": ranks, **flat})
