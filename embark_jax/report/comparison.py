"""Runs beside each other: which keys differ, metrics, time and memory; in the terminal,
and as a page with their curves over each other."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich import markup
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from embark_jax.metrics.pointwise import Metric
from embark_jax.report.curves import Records, compared_curves, value_plots
from embark_jax.report.page import PAGE, html_text, image

MOST_ACROSS = 5
"""Lines that are the columns of a table; more are its rows."""
MOST_CURVES = 10
"""Lines of the table whose curves are drawn: the first, which are the best of a search.
More cannot be told apart."""
BEST, ABSENT = "*", "–"
SEED, TEST = "seed", "test_"
NAMES = "name", "search"
"""Keys that say nothing of how a run was trained, and ``search.KEY`` neither."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """What is compared of a run.

    Attributes:
      name: its folder.
      config: its config, JSON-like.
      records: its records, as ``logs.read_metrics`` gives them.
      planned_bytes: memory of the fullest device, by its plan.
      metrics: the metrics that it may have, by name before any cutoff.
    """

    name: str
    config: Mapping[str, Any]
    records: Records
    planned_bytes: float | None
    metrics: Mapping[str, Metric]

    @functools.cached_property
    def keys(self) -> dict[str, Any]:
        """The values of its config by dotted key."""
        return {k: v for k, v in _flat(self.config) if k.split(".")[0] not in NAMES}

    @functools.cached_property
    def final(self) -> Mapping[str, Any]:
        """Its last record; empty if it has not ended."""
        return next((r for r in self.records if r.get("final")), {})

    def metric(self, name: str) -> Metric | None:
        """Returns the metric of a key such as ``test_hr@10/like``."""
        known = name.partition("_")[2].partition("/")[0]
        return self.metrics.get(known) or self.metrics.get(known.partition("@")[0])

    def best(self, key: str) -> float | None:
        """Returns the best value of a metric in the evaluations, by its key in them."""
        found = [record.get(key) for record in self.records]
        values = [x for x in found if isinstance(x, int | float) and math.isfinite(x)]
        metric = self.metric(key)
        if not values or metric is None:
            return None
        return max(values) if metric.higher_is_better else min(values)

    def figures(self) -> dict[str, float | None]:
        """Returns steps, time, speed and memory, by their headings."""
        speeds = [r["samples_per_s"] for r in self.records if r.get("samples_per_s")]
        seconds = [r["window_seconds"] for r in self.records if "window_seconds" in r]
        return {
            "steps": self.records[-1]["step"] if self.records else None,
            "training, s": sum(seconds) if seconds else None,
            "samples per s": statistics.median(speeds) if speeds else None,
            "planned MB": self.planned_bytes and self.planned_bytes / 1e6,
        }


@dataclasses.dataclass(frozen=True)
class ComparisonTable:
    """A table that a console shows in several below each other, each with the first
    column, where it is too narrow for all of them.

    Attributes:
      columns: heading and cells of each column.
    """

    columns: Sequence[Sequence[str]]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Table]:
        first, *others = self.columns
        blocks, room = [], 0
        for column in others:
            if room < (width := _width(column)):
                blocks.append([first])
                room = options.max_width - _width(first) - 1
            blocks[-1].append(column)
            room -= width
        for block in blocks:
            heads, *rows = zip(*block, strict=True)
            table = Table(*map(markup.escape, heads))
            for row in rows:
                table.add_row(*map(Text, row))
            yield table


def _width(column: Sequence[str]) -> int:
    """Returns the characters that a column takes with its border and blanks."""
    return 3 + max(len(line) for cell in column for line in cell.split("\n"))


def _flat(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(key, value)]
    inner = (_flat(each, f"{key}.{name}".lstrip(".")) for name, each in value.items())
    return [pair for pairs in inner for pair in pairs]


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the keys in which configs differ."""
    keys = dict.fromkeys(key for run in runs for key in run.keys)
    return [k for k in keys if any(r.keys.get(k) != runs[0].keys.get(k) for r in runs)]


def repeats(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Returns the runs, those together that differ in their seed alone; one with the
    seed of another repeats nothing, as it computes the same."""
    groups: list[list[ComparedRun]] = []
    for run in runs:
        for group in groups:
            if differing([group[0], run]) == [SEED] and run.keys[SEED] not in [
                other.keys[SEED] for other in group
            ]:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def ordered(groups: Sequence[list[ComparedRun]], key: str) -> list[list[ComparedRun]]:
    """Returns groups of runs with the best mean value of a metric first, by its key in
    records, and those that have none last."""

    def place(group: list[ComparedRun]) -> float:
        value, metric = _mean([run.best(key) for run in group]), group[0].metric(key)
        if value is None or metric is None:
            return math.inf
        return -value if metric.higher_is_better else value

    return sorted(groups, key=place)


def comparison_table(
    runs: Sequence[ComparedRun],
    deciding: str | None = None,
    most: int | None = None,
) -> ComparisonTable:
    """Returns a table of runs; several seeds of one config share a line, with mean ±
    standard deviation.

    Args:
      runs: the runs, one or more.
      deciding: key of the metric of evaluations that decides, such as
        "validation_auc": its best value is shown, and the best line is the first.
      most: number of lines, the first ones; None shows all.
    """
    groups = repeats(runs)
    is_grouped = len(groups) < len(runs)
    if deciding is not None:
        groups = ordered(groups, deciding)
    groups = groups[:most]
    columns = {"run": [*map(_name, groups)]}
    for key in differing(runs):
        if key != SEED or not is_grouped:
            values = [group[0].keys.get(key, ABSENT) for group in groups]
            columns[key] = [*map(_text, values)]
    if deciding is not None:
        of_groups = [[run.best(deciding) for run in group] for group in groups]
        columns[f"best {deciding}"] = _marked(of_groups, groups[0][0].metric(deciding))
    for name in dict.fromkeys(name for run in runs for name in run.final):
        metric = next((m for run in runs if (m := run.metric(name))), None)
        if name.startswith(TEST) and metric is not None:
            of_groups = [[run.final.get(name) for run in group] for group in groups]
            columns[name] = _marked(of_groups, metric)
    for heading in runs[0].figures():
        means = [_mean([run.figures()[heading] for run in group]) for group in groups]
        columns[heading] = [
            ABSENT if x is None else f"{x:,.4g}" if x < 1e4 else f"{x:,.0f}"
            for x in means
        ]
    if len(groups) > MOST_ACROSS:
        folded = {key.replace(".", ".\n").replace(" ", "\n"): key for key in columns}
        return ComparisonTable([[head, *columns[key]] for head, key in folded.items()])
    lines = [[heading, *cells] for heading, cells in columns.items()]
    return ComparisonTable([*zip(*lines, strict=True)])


def legend(runs: Sequence[ComparedRun]) -> str:
    """Returns what the marks of a table mean, and whether its values compare."""
    marks = f"{BEST}: the best value; ±: standard deviation of seeds"
    data = [key for key in differing(runs) if key.startswith("data.")]
    if not data:
        return marks
    return (
        f"{marks}; runs differ in {', '.join(data)}: metrics of other test samples do "
        "not compare"
    )


def _name(group: Sequence[ComparedRun]) -> str:
    """Returns the name of a line of the table."""
    return group[0].name + f" and {len(group) - 1} more" * (len(group) > 1)


def _text(value: Any) -> str:
    """Returns a value of a config as YAML has it."""
    if type(value) is float:
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _marked(
    groups: Sequence[Sequence[float | None]], metric: Metric | None
) -> list[str]:
    """Returns mean ± standard deviation of the values of each group, and a mark at the
    best mean of several."""
    cells, means = [], [_mean(values) for values in groups]
    known = [mean for mean in means if mean is not None]
    best = None
    if metric is not None and metric.higher_is_better is not None and len(known) > 1:
        best = max(known) if metric.higher_is_better else min(known)
    for values, mean in zip(groups, means, strict=True):
        some = [value for value in values if value is not None]
        spread = f" ± {statistics.stdev(some):.5f}" if len(some) > 1 else ""
        mark = f" {BEST}" if mean is not None and mean == best else ""
        cells.append(ABSENT if mean is None else f"{mean:.5f}{spread}{mark}")
    return cells


def comparison_page(runs: Sequence[ComparedRun], deciding: str | None) -> str:
    """Returns a whole page: the table, the curves over each other, and of the keys that
    differ the values against the metric."""
    groups = repeats(runs)
    if deciding is not None:
        groups = ordered(groups, deciding)
    drawn = groups[:MOST_CURVES]
    curves = {_name(group): [run.records for run in group] for group in drawn}
    some = f" of the first {len(drawn)} of {len(groups)}" * (len(drawn) < len(groups))
    what = f"Curves{some}"
    parts = [html_text(comparison_table(runs, deciding), Text(legend(runs)))]
    parts += [
        f"<h2>{escape(what)}</h2>",
        image(compared_curves(curves, deciding), what),
    ]
    keys = [key for key in differing(runs) if key != SEED]
    if deciding is not None and keys:
        points = {k: [(r.keys.get(k), r.best(deciding)) for r in runs] for k in keys}
        what = f"Values against {deciding}"
        parts += [
            f"<h2>{escape(what)}</h2>",
            image(value_plots(points, deciding), what),
        ]
    title = f"{len(runs)} runs compared"
    return PAGE.substitute(title=title, body=f"<h1>{title}</h1>" + "\n".join(parts))
