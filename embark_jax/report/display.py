"""The output of a run in the terminal, or in a file, and its progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from embark_jax.metrics.ranking import METRICS

NO_METRICS = ("samples", "step", "repeats")
"""What records have of a split beside its metrics."""
TEST_STEP = "test_step"
"""Key of the step whose model was tested, in the record of a run's end."""


def show_result(record: dict[str, Any], console: Console) -> None:
    """Shows the final record: test metrics, and the ids that were dropped or hashed."""
    if record.get("test_samples") == 0:
        say(console, "the data have no test set: nothing was measured")
    else:
        console.print(result_table(record))
    for reason in undefined(record, "test"):
        say(console, reason)
    for prefix, where in (("bad_ids/", "training"), ("test_bad_ids/", "the test set")):
        for name, count in record.items():
            if name.startswith(prefix):
                feature = name.removeprefix(prefix)
                say(
                    console,
                    f"{where}: {count:,} bad ids of {feature!r} were dropped or hashed",
                )
    missing = {k: n for k, n in record.items() if k.startswith("missing_dense/")}
    for name, count in missing.items():
        column = name.removeprefix("missing_dense/")
        say(console, f"the data: {count:,} missing values of {column!r} are 0")


def undefined(record: Mapping[str, Any], split: str) -> list[str]:
    """Returns why metrics of a split are undefined, those of one reason together."""
    if not record.get(f"{split}_samples"):
        return []
    values = {name: record[f"{split}_{name}"] for name in _names(record, split)}
    tasks = [n.removeprefix("samples/") for n in values if n.startswith("samples/")]
    empty = [task for task in tasks if not values[f"samples/{task}"]]
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        metric, _, task = name.partition("/")
        is_mean = not task and any(f"{name}/{task}" in values for task in tasks)
        if value is None and not is_mean and task not in empty:
            known = METRICS.get(metric.partition("@")[0])
            needs = known.needs if known else "what its function asks for"
            names.setdefault(needs, []).append(name)
    reasons = [f"undefined: {', '.join(of)}, needs {n}" for n, of in names.items()]
    return [
        *(f"undefined: all of {t}, no sample has its label" for t in empty),
        *reasons,
    ]


def result_table(record: Mapping[str, Any]) -> Table:
    """Returns a table of the test metrics of the final record."""
    table = Table("test metric", Column("value", justify="right"))
    for name, value in record.items():
        if name.startswith("test_") and (value is not None or record["test_samples"]):
            table.add_row(name.removeprefix("test_"), value_text(value))
    if "bayes_auc" in record:
        table.add_row("best attainable auc", value_text(record["bayes_auc"]))
    return table


def value_text(value: float | None) -> str:
    """Returns a metric, or a count, as a text."""
    if value is None:
        return "undefined"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5f}"


def step_progress(show: bool | None = None, console: Console | None = None) -> Progress:
    """Returns a bar of steps, with the text of the task's field ``shown`` beside it.

    Args:
      show: whether the bar is shown; None shows it in a terminal and in a notebook.
      console: console that shows it; None takes standard output.
    """
    console = console or Console()
    if show is None:
        show = console.is_terminal or console.is_jupyter
    return Progress(
        TextColumn("step"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not show,
    )


def say(console: Console, text: str) -> None:
    """Prints text as it is: one line, and brackets are no markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def say_at_end(console: Console, text: str) -> None:
    """Prints where the process may end at once: a progress bar hides the cursor."""
    console.show_cursor()
    say(console, text)


def step_text(record: Mapping[str, Any]) -> str:
    """Returns a record of training as one line."""
    phrases = [f"loss {record['loss']:.4f}"]
    if record["train_auc"] is not None:
        phrases.append(f"training AUC {record['train_auc']:.4f}")
    if record["samples_per_s"] is not None:
        phrases.append(f"{record['samples_per_s']:,.0f} samples/s")
    if "hot_batches" in record:
        phrases.append(
            f"{record['hot_batches']:.0%} all-hot batches{_hot_gain(record)}"
        )
    return "  ".join(phrases)


def _hot_gain(record: Mapping[str, Any]) -> str:
    """Returns how long steps of both kinds take, if that is known."""
    times = record["hot_step_ms"], record["mixed_step_ms"]
    return "" if None in times else " ({:.1f} ms, mixed {:.1f} ms)".format(*times)


def split_text(record: Mapping[str, Any], split: str) -> str:
    """Returns the metrics of a split as one line."""
    names = {"log_loss": "loss", "auc": "AUC"}
    others = (n for n in _names(record, split) if "/" not in n)
    names |= {n: n for n in others if n not in (*METRICS, *NO_METRICS)}
    values = {shown: record.get(f"{split}_{name}") for name, shown in names.items()}
    known = [f"{n} {value:.5f}" for n, value in values.items() if value is not None]
    return f"{split} {'  '.join(known) or 'metrics are undefined'}"


def _names(record: Mapping[str, Any], split: str) -> list[str]:
    """Returns the names of a split's metrics, without its own."""
    return [n.removeprefix(f"{split}_") for n in record if n.startswith(f"{split}_")]
