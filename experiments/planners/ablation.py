"""What each part of the search gains: plans without it beside plans with all parts.

    python experiments/planners/ablation.py [--parts "all parts" …]

Writes results/search/ablation.json and ablation.md. Results of parts that are not asked
for stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from embark_jax import planner
from embark_jax.planner.search import instance, relaxation
from embark_jax.planner.search.params import SearchParams
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.forced import ForcedPlacement

RESULTS = Path(__file__).parent / "results" / "search" / "ablation.json"
ALL = "all parts"
PARTS: dict[str, SearchParams | contextlib.AbstractContextManager] = {
    "roundings of crowded relaxations": SearchParams(crowding=(0.0,)),
    "hot rows that take 90 % of the ids": SearchParams(hot_shares=(0.5, 0.65, 0.8)),
    "hot rows that take 65 and 80 %": SearchParams(hot_shares=(0.5, 0.9)),
    "hot rows that take 50 % of the ids": SearchParams(hot_shares=(0.65, 0.8, 0.9)),
    "candidates beyond the best eight": SearchParams(shortlist=8),
    "last moves among 32 candidates": SearchParams(last_shortlist=16),
    "dearer memory after a plan fits": SearchParams(memory_searches=1),
    "hierarchical exchanges": mock.patch.object(
        instance, "worthwhile_exchanges", return_value=("flat",)
    ),
    "dominated candidates left out": mock.patch.object(
        relaxation, "undominated", lambda made, _: np.ones(len(made.candidates), bool)
    ),
}
"""What is done without each part: other parameters, or another function."""
CASES = (
    # model, nodes, Zipf exponent, whether hot rows can be chosen
    *(("dlrm_dcnv2", nodes, 1.1, True) for nodes in (1, 8, 16)),
    *(("dlrm_dcnv2", nodes, 0.6, False) for nodes in (1, 8)),
    ("dlrm_dcnv2", 1, 0.0, False),
    ("dlrm_dcnv2", 16, 1.1, False),
    ("dlrm_dcnv2", 16, 0.0, False),
    *(("t7", nodes, 1.1, True) for nodes in (8, 16)),
    ("t7", 16, 1.1, False),
    ("t180", 1, 1.1, True),
    ("t180", 1, 0.0, False),
    ("t180", 8, 0.6, False),
    ("t180", 8, 1.1, False),
    ("t200", 1, 1.1, True),
    ("t200", 8, 1.1, False),
    ("t510", 16, 1.1, False),
    ("synthetic_small", 8, 1.1, False),
    ("rmc2", 16, 1.1, False),
)


def measure(
    model: str, nodes: int, skew: float, hot: bool, params: SearchParams
) -> tuple[float, float]:
    """Predicted ms of a step, and CPU seconds of planning."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    workload = listed.workload(
        dgx_h100(nodes), None, skew, overlap=False, kernels="mosaic_gpu"
    )
    cold = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    begin = time.process_time()
    made = planner.plan_for(workload, tables, features, forced=cold, params=params)
    assert made.prediction is not None
    return made.prediction.step_ms, time.process_time() - begin


def table(results: dict[str, Any]) -> str:
    """In Markdown, a line a part: how much longer steps are without it, in %."""
    lines = [
        "| without | geometric mean, % | most | where | CPU time |",
        "|---" * 5 + "|",
    ]
    whole = results[ALL]
    for part, steps in results.items():
        if part == ALL:
            continue
        ratios = {case: steps[case][0] / whole[case][0] for case in steps}
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        worst = max(ratios, key=lambda case: ratios[case])
        cpu = [sum(of[case][1] for case in steps) for of in (steps, whole)]
        lines.append(
            f"| {part} | {100 * (mean - 1):+.2f} | {100 * (ratios[worst] - 1):+.1f} | "
            f"{worst} | × {cpu[0] / cpu[1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Leaves out parts of the search.")
    known = [ALL, *PARTS]
    parser.add_argument("--parts", nargs="+", choices=known, default=known)
    given = parser.parse_args()
    for part in given.parts:
        steps = {}
        without = PARTS.get(part, SearchParams())
        params, patch = SearchParams(), contextlib.nullcontext()
        if isinstance(without, SearchParams):
            params = without
        else:
            patch = without
        with patch:
            for model, nodes, skew, hot in CASES:
                name = f"{model} on {8 * nodes}, Zipf {skew}" + ", hot rows" * hot
                steps[name] = measure(model, nodes, skew, hot, params)
                print(part, name, *steps[name], flush=True)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[part] = steps
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        if ALL in results:
            RESULTS.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
