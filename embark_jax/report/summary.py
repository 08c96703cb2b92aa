"""The content of a plan's report, before it is laid out for a terminal or a page."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from embark_jax._base.memory import bytes_text
from embark_jax.plans.options import Kernels
from embark_jax.plans.placement import equal_placements
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import Prediction
from embark_jax.plans.wire import VALUE_BYTES

MOST_RUNS = 6
"""Largest number of runs of neighbouring devices that a list of owners names."""
MOST_NAMED = 3
"""Phases and tables that an overview names."""
UNEVEN = 1.2
"""Smallest ratio of the hottest row shard's ids to the mean that a report mentions."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """The place of a table, or of several tables whose lines would be equal.

    Attributes:
      tables: names of the tables.
      rows, dim, ids: figures of each table; ``ids`` is the most of a sample.
      placement: text such as "RB 8 × 1", row shards by column shards.
      devices: owners of all of them, in words.
      ms: their part of the step's time, together; None if it is not known.
    """

    tables: tuple[str, ...]
    rows: int
    dim: int
    ids: int
    placement: str
    devices: str
    ms: float | None

    @property
    def name(self) -> str:
        others = len(self.tables) - 1
        return self.tables[0] + (f" and {others} alike" if others else "")


CLUSTERS = (
    "DP: every device holds the whole table, and gradients are summed over all. RB: "
    "ids go to the devices that own the rows, which pool them and send sums. UB: each "
    "row that a device needs is sent to it once, and pooled there. 8 × 1 is 8 row "
    "shards by 1 column shard; hot rows are in DP."
)
COLUMNS = (
    "ms and share: the table's part of what the busiest devices do, which sums to the "
    "step."
)
PLACEHOLDERS = (
    "the fleet's figures are placeholders: times compare plans, but are not those of "
    "this machine; `embark bench calibrate --out fleet.yaml` measures it"
)

KERNELS: dict[Kernels, str] = {
    "xla": "plain XLA",
    "mosaic_gpu": "the GPU kernels (mosaic_gpu)",
}


def assumptions(plan: Plan) -> str:
    """Says of what step the prediction is: the implementation of lookups and updates,
    who makes the routes, and what travels meanwhile; "" if there is none."""
    prediction = plan.prediction
    if prediction is None:
        return ""
    text = f"assumes lookups and updates in {KERNELS[prediction.kernels]}; "
    if not prediction.overlap:
        return text + "nothing overlaps"
    text += "each step makes the routes of the next beside the dense layers"
    hidden_ms = prediction.breakdown.hidden_ms
    travel = f"{hidden_ms:.3f}"
    return text + f", where ids travel for {travel} ms" * (travel != "0.000")


def headline(plan: Plan) -> str:
    return (
        f"{counted(len(plan.placements), 'table')}, "
        f"{counted(len(plan.features), 'feature')} on "
        f"{plan.nodes} × {plan.gpus_per_node} devices, batch {plan.batch_size:,}"
    )


def overview(plan: Plan) -> str:
    """Sums up the plan in a few lines: tables by cluster, time, memory, longest
    phases."""
    clusters = Counter(placement.cluster.upper() for placement in plan.placements)
    lines = [
        headline(plan),
        "tables: " + ", ".join(f"{n:,} in {name}" for name, n in clusters.items()),
    ]
    if (prediction := plan.prediction) is None:
        return "\n".join(
            [*lines, "no prediction: the plan was not made by the planner"]
        )
    lines.append(f"predicted: {_step_and_memory(prediction)}")
    if priced := assumptions(plan):
        lines.append(priced)
    table_ms = {
        decision.name: decision.ms for decision in decisions(plan) if decision.ms
    }
    for what, ms in (("phases", critical_path(plan)), ("tables", table_ms)):
        longest = sorted(ms, key=lambda name: -ms[name])[:MOST_NAMED]
        if longest and prediction.step_ms:
            shares = (f"{name} {ms[name] / prediction.step_ms:.0%}" for name in longest)
            lines.append(f"{what} that take most of it: {', '.join(shares)}")
    return "\n".join(lines)


def _step_and_memory(prediction: Prediction) -> str:
    """Says how long a step takes, and what memory and disks hold."""
    sizes = {"a device": max(prediction.device_bytes)} | {
        f"a node in tier {tier}": stored_bytes
        for tier, stored_bytes in prediction.stored_bytes.items()
    }
    texts = [f"{prediction.step_ms:.3f} ms a step for the embeddings"]
    for where, total_bytes in sizes.items():
        texts.append(f"{bytes_text(total_bytes)} {where}")
    return ", ".join(texts)


def verdict(plan: Plan) -> str:
    """Says what the plan is predicted to cost, and how near the optimum that is."""
    prediction = plan.prediction
    if prediction is None:
        return "no prediction: the plan was not made by the planner"
    cost = f"{_step_and_memory(prediction)} (predicted); "
    if math.isinf(prediction.gap):
        return cost + "how near the optimum it is, is not known"
    return cost + (
        f"at most {prediction.gap:.1%} above the optimum of this cost model over the "
        f"splits it considers (lower bound {prediction.lower_bound_ms:.3f} ms)"
    )


def decisions(plan: Plan, separately: bool = False) -> list[Decision]:
    """Returns how each table is placed, those that take most time first.

    Args:
      plan: the plan.
      separately: whether every table has a line of its own, rather than one for alike
        tables.
    """
    ids: dict[str, int] = {}
    for feature in plan.features:
        ids[feature.table] = ids.get(feature.table, 0) + feature.hotness
    breakdown = plan.prediction.breakdown if plan.prediction else None
    groups = equal_placements(plan.placements, plan.features)
    if separately:
        groups = [[placement] for placement in plan.placements]
    unsorted = []
    for members in groups:
        first, names = members[0], tuple(p.table.name for p in members)
        replicated = first.replicated
        owners = [device for p in members for device in p.devices]
        split = "" if replicated else f" {first.row_shards} × {first.column_shards}"
        if first.hot_rows:
            split += f", {short(first.hot_rows)} rows hot"
        if first.table.cached and first.table.slots:
            split += f", {short(first.table.slots)} slots"
            if first.table.is_dynamic or first.table.slots < first.table.rows:
                split += f", rows in {first.table.tier}"
        unsorted.append(
            Decision(
                tables=names,
                rows=first.table.rows,
                dim=first.table.dim,
                ids=ids[first.table.name],
                placement=first.cluster.upper() + split,
                devices="all" if replicated else _ranges(owners, plan.devices),
                ms=sum(map(breakdown.table_ms.__getitem__, names))
                if breakdown
                else None,
            )
        )
    return sorted(unsorted, key=lambda decision: -(decision.ms or 0.0))


def critical_path(plan: Plan) -> dict[str, float]:
    """Returns how many ms each phase lasts; empty if it is not known."""
    breakdown = plan.prediction.breakdown if plan.prediction else None
    return dict(breakdown.critical_ms) if breakdown else {}


def uneven_rows(plan: Plan) -> str:
    """Says how uneven row shards are, since rows go round robin; "" if they are
    even."""
    breakdown = plan.prediction.breakdown if plan.prediction else None
    hottest = dict(breakdown.hottest_row_shard) if breakdown else {}
    uneven = [name for name in hottest if hottest[name] >= UNEVEN]
    if not uneven:
        return ""
    worst = max(uneven, key=lambda name: hottest[name])
    return (
        f"row shards of {counted(len(uneven), 'table')} are uneven: the hottest is "
        f"sent up to {hottest[worst]:.2g}× the mean of its table ({worst})"
    )


def table_bytes(plan: Plan) -> dict[str, np.ndarray]:
    """Returns ``[devices]`` bytes of each table's rows on each device; replicated rows
    count on all."""
    held = np.zeros((len(plan.tables), plan.devices))
    for storage in plan.storages:
        shards = storage.shards
        row_bytes = storage.width * VALUE_BYTES[storage.kind.dtype]
        size = row_bytes * shards["slots"]
        if storage.replicated:
            held[shards["table"]] += size[:, None]
        else:
            np.add.at(held, (shards["table"], shards["owner"]), size)
    return dict(zip([table.name for table in plan.tables], held, strict=True))


def row_bytes(plan: Plan) -> np.ndarray:
    """Returns ``[devices]`` bytes of rows of each device's own shards; replicated rows
    count on all."""
    return np.sum([*table_bytes(plan).values()], axis=0)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 table" or "26 tables"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def short(number: float) -> str:
    """Formats a number with three figures, such as "0.0123", "39.1k" or "40M"."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _ranges(owners: Sequence[int], devices: int) -> str:
    """Formats device numbers, such as "0–3, 6"."""
    if len(set(owners)) == devices > 1:
        return "all"
    runs: list[list[int]] = []
    for device in sorted(set(owners)):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    listed = [
        str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}"
        for run in runs[:MOST_RUNS]
    ]
    return ", ".join(listed) + (", …" if len(runs) > MOST_RUNS else "")
