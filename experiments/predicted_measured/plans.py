"""Plans by a power law beside plans by statistics, both priced by the statistics.

Large tables of DLRM-DCNv2 get the accesses of a mean table of Meta's traces. The power
law has the exponent that gives as many unique ids.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.plans import fleet
from embark_jax.statistics.accesses import Statistics, TableAccess
from embark_jax.statistics.histogram import MOST_HOTTEST, Histogram
from experiments.predicted_measured.cases import FOLDER
from experiments.predicted_measured.inputs import exponent

MODEL = Path(__file__).parents[2] / "configs" / "models" / "dlrm_dcnv2.yaml"
LEAST_ROWS = 400_000
"""Smaller tables have fewer rows than a table of the traces has unique ids."""
BATCHES = {1: 55_296, 8: 135_168}
"""Samples of a step by nodes, as MLPerf's submissions have them."""


def histogram(curve: dict[str, Any]) -> Histogram:
    """Returns the accesses of a mean table of a trace; rows of a bin are read as often
    as the geometric mean of its ends, and rows are numbered by frequency."""
    ids = curve["ids"] / curve["tables"]
    ends = [0, *curve["up_to"][:-1]]
    bins = []
    for begin, end, share in zip(ends, curve["up_to"], curve["lookups"], strict=True):
        reads = math.sqrt(begin * (end or 2 * begin)) if begin > 1 else end
        bins.append((max(1, round(share * ids / reads)), round(share * ids)))
    bins.reverse()
    counts = (round(accesses / rows) for rows, accesses in bins for _ in range(rows))
    hottest = tuple(enumerate(itertools.islice(counts, MOST_HOTTEST)))
    return Histogram(tuple(bins), hottest)


def compared() -> Iterator[dict[str, Any]]:
    """Yields the predicted steps of plans for 8 and 64 H100 by both years' traces."""
    listed = planner.read_table_list(MODEL.read_text())
    model = tables, features = listed.specs()
    curves = json.loads((FOLDER / "measured" / "inputs.json").read_text())["curves"]
    for (year, curve), (nodes, batch) in itertools.product(
        curves.items(), BATCHES.items()
    ):
        accesses = histogram(curve)
        large = [table for table in tables if table.rows >= LEAST_ROWS]
        statistics = Statistics(
            tables={table.name: TableAccess(table.rows, accesses) for table in large}
        )
        per_table = (curve[key] / curve["tables"] for key in ("ids", "unique"))
        law = exponent(*per_table)
        machines = fleet.dgx_h100(nodes)
        by_law = listed.workload(
            machines, batch, law, optimizer="adagrad", kernels="mosaic_gpu"
        )
        by_trace = dataclasses.replace(by_law, statistics=statistics)

        def step_ms(placements, workload):
            priced = planner.predict(
                placements, features, workload, ProgramModel(workload)
            )
            return priced.step_ms

        given = {"zipf_exponent": law, "optimizer": "adagrad", "kernels": "mosaic_gpu"}
        plan_by_law = planner.plan(*model, machines, batch, **given)
        plan_by_trace = planner.plan(
            *model, machines, batch, statistics=statistics, **given
        )
        yield {
            "trace": year,
            "gpus": machines.devices,
            "exponent": law,
            "law_said_ms": step_ms(plan_by_law.placements, by_law),
            "law_ms": step_ms(plan_by_law.placements, by_trace),
            "trace_ms": step_ms(plan_by_trace.placements, by_trace),
        }
