"""Runs beside each other: what differs, what repeats, which is best."""

import dataclasses
import math
from io import StringIO

import pytest
from rich.console import Console

from embark_jax.metrics.ranking import METRICS
from embark_jax.report.comparison import (
    ComparedRun,
    comparison_page,
    comparison_table,
    differing,
    legend,
    ordered,
    repeats,
)


def run(name, rate, seed=0, auc=0.5, **changes) -> ComparedRun:
    config = {"name": name, "seed": seed, "train": {"rate": rate, **changes}}
    records = (
        {"step": 10, "loss": 0.7, "samples_per_s": 50.0, "window_seconds": 2.0},
        {"step": 10, "validation_auc": auc - 0.1, "validation_log_loss": 1 - auc},
        {"step": 20, "loss": 0.6, "samples_per_s": 70.0, "window_seconds": 1.5},
        {"step": 20, "validation_auc": auc, "validation_log_loss": math.inf},
        {"step": 20, "final": True, "test_auc": auc, "test_log_loss": 1 - auc},
    )
    return ComparedRun(name, config, records, 2_000_000, METRICS)


def shown(table, width=200) -> list[list[str]]:
    file = StringIO()
    Console(file=file, width=width).print(table)
    lines = [
        line for line in file.getvalue().splitlines() if "│" in line or "┃" in line
    ]
    return [
        [c.strip() for c in line.replace("┃", "│").split("│")[1:-1]] for line in lines
    ]


def test_keys_that_differ_and_the_better_values_are_marked():
    runs = [run("a", 0.1, auc=0.7), run("b", 0.01, auc=0.6, steps=5)]
    assert differing(runs) == ["train.rate", "train.steps"]
    rows = {head: cells for head, *cells in shown(comparison_table(runs))}
    assert rows["run"] == ["a", "b"]
    assert rows["train.rate"] == ["0.1", "0.01"]
    assert rows["train.steps"] == ["–", "5"]
    assert rows["test_auc"] == ["0.70000 *", "0.60000"]
    assert rows["test_log_loss"] == ["0.30000 *", "0.40000"]
    assert rows["training, s"] == ["3.5", "3.5"]
    assert rows["samples per s"] == ["60", "60"]
    assert rows["planned MB"] == ["2", "2"]
    begun = dataclasses.replace(runs[0], name="c", records=runs[0].records[:1])
    rows = {head: cells for head, *cells in shown(comparison_table([begun, *runs]))}
    assert rows["test_auc"] == ["–", "0.70000 *", "0.60000"]


def test_runs_on_other_data_are_told_beside_the_table():
    one, other = run("a", 0.1), run("b", 0.01)
    assert "do not compare" not in legend([one, other])
    moved = {**other.config, "data": {"path": "weeks/2"}}
    other = dataclasses.replace(other, config=moved)
    assert "data.path: metrics of other test samples do not" in legend([one, other])
    assert "data.path" in comparison_page([one, other], None)


def test_a_metric_that_one_run_has_is_shown():
    other = run("b", 0.1)
    final = {**other.records[-1], "test_lift": 2.0}
    lift = {**METRICS, "lift": METRICS["auc"]}
    other = dataclasses.replace(
        other, records=(*other.records[:-1], final), metrics=lift
    )
    table = comparison_table([run("a", 0.1), other])
    rows = {head: cells for head, *cells in shown(table)}
    assert rows["test_lift"] == ["–", "2.00000"]


def test_seeds_are_repeats_only_if_nothing_else_differs():
    """A run with the seed of another computes the same: it repeats nothing."""
    runs = [
        run("a", 1, 0),
        run("b", 1, 1),
        run("c", 2, 1),
        run("d", 1, 1),
        run("e", 1, 2),
    ]
    names = [[each.name for each in group] for group in repeats(runs)]
    assert names == [["a", "b", "e"], ["c"], ["d"]]


@pytest.mark.parametrize("most", [None, 3])
def test_lines_of_a_search_are_ordered_by_the_mean_of_seeds(most):
    aucs = {
        "a": 0.5,
        "b": 0.9,
        "c": 0.6,
        "d": 0.65,
        "e": 0.1,
        "f": 0.2,
        "g": 0.3,
        "h": 0.4,
    }
    runs = [
        run(name, 1 if name in "ab" else ord(name), name == "b", auc)
        for name, auc in aucs.items()
    ]
    names = ["a and 1 more", "d", "c", "h", "g", "f", "e"][:most]
    lines = shown(comparison_table(runs, "validation_auc", most))
    if most:  # so few lines are columns
        lines = [*map(list, zip(*lines, strict=True))]
    heads, rows = lines[: -len(names)], lines[-len(names) :]  # folded headings
    head = [" ".join(filter(None, cells)) for cells in zip(*heads, strict=True)]
    assert [row[0] for row in rows] == names
    assert rows[0][head.index("best validation_auc")] == "0.70000 ± 0.28284 *"
    by_loss = ordered([[each] for each in runs], "validation_log_loss")
    assert by_loss[0][0].name == "b"


@pytest.mark.parametrize("count", [4, 8])
def test_narrow_terminals_show_each_figure_whole(count):
    runs = [run(f"a-long-name-{i}", 10.0**-i, auc=0.5 + i / 20) for i in range(count)]
    cells = {cell for line in shown(comparison_table(runs), 64) for cell in line}
    assert {each.name for each in runs} < cells
    assert {f"{0.5 + i / 20:.5f}" for i in range(count - 1)} < cells
    assert not any("…" in cell for cell in cells)


def test_values_are_written_as_in_a_config():
    runs = [run("a", None, each=True), run("b", [8, 4], each="x: y")]
    rows = {head: cells for head, *cells in shown(comparison_table(runs))}
    assert rows["train.rate"] == ["null", "[8, 4]"]
    assert rows["train.each"] == ["true", "x: y"]


def test_a_page_draws_curves_and_values():
    runs = [run(f"<{i}>", 10.0**-i, auc=0.5 + i / 10) for i in range(4)]
    page = comparison_page(runs, "validation_auc")
    assert page.count("<img") == 2
    assert "&lt;3&gt;" in page
    assert "<3>" not in page
