"""What hot rows change of a step: bytes between devices, and the time of each phase.

    python experiments/hot_rows/bytes.py

Writes bytes.json after each case, goes on where it was stopped, and prints the tables
of README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.planner import ProgramModel
from embark_jax.planner.cost.phases import critical_ms
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.storage import Placement

CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 16), ("t180", 1), ("t180", 16))
SKEW = 1.1
RESULTS = Path(__file__).with_name("bytes.json")


def measure(model: str, nodes: int) -> dict[str, Any]:
    """Plans without and with hot rows of one case."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    workload = listed.workload(
        dgx_h100(nodes), None, SKEW, overlap=False, kernels="mosaic_gpu"
    )

    def describe(forced: dict[str, ForcedPlacement]) -> dict[str, Any]:
        made = planner.plan_for(workload, tables, features, forced=forced)
        parts = planner.phases(
            made.placements, features, workload, ProgramModel(workload)
        )
        return {
            "node_link_bytes": sum(float(each.node_link_bytes.max()) for each in parts),
            "network_bytes": sum(float(each.network_bytes.max()) for each in parts),
            "phase_ms": critical_ms(parts),
            "latency_ms": sum(each.latency_ms for each in parts),
            "clusters": count(made.placements),
        }

    cold = dict.fromkeys((t.name for t in tables), ForcedPlacement(hot_rows=0))
    return {
        **{"model": model, "gpus": 8 * nodes},
        **{"without": describe(cold), "with": describe({})},
    }


def count(placements: tuple[Placement, ...]) -> dict[str, int]:
    """Tables by cluster, and how many of them have hot rows."""
    found = {"dp": 0, "rb": 0, "ub": 0, "hot": 0}
    for each in placements:
        found[each.cluster] += 1
        found["hot"] += each.hot_rows > 0
    return found


def show_bytes(results: list[dict[str, Any]]) -> None:
    print(
        "| model | GPUs | MB inside the node, without | with | MB to other nodes, "
        "without | with | DP, RB, UB tables without | with (of them with hot rows) |"
    )
    print("|---" * 8 + "|")
    for each in results:
        pair = each["without"], each["with"]
        inside = [f"{one['node_link_bytes'] / 1e6:,.1f}" for one in pair]
        outside = [f"{one['network_bytes'] / 1e6:,.1f}" for one in pair]
        kinds = [
            ", ".join(str(one["clusters"][k]) for k in ("dp", "rb", "ub"))
            for one in pair
        ]
        hot = each["with"]["clusters"]["hot"]
        print(
            f"| {each['model']} | {each['gpus']} | "
            f"{' | '.join(inside + outside + kinds)} ({hot}) |"
        )


def show_phases(results: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(n for each in results for n in each["with"]["phase_ms"]))
    print(f"\n| model | GPUs | hot rows | {' | '.join(names)} | of it latency |")
    print("|---" * (4 + len(names)) + "|")
    for each in results:
        for kind in ("without", "with"):
            ms = each[kind]["phase_ms"]
            cells = [f"{ms.get(name, 0.0):.3f}" for name in names]
            print(
                f"| {each['model']} | {each['gpus']} | {kind} | {' | '.join(cells)} | "
                f"{each[kind]['latency_ms']:.3f} |"
            )


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for case in CASES[len(results) :]:
        results.append(measure(*case))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    show_bytes(results)
    show_phases(results)


if __name__ == "__main__":
    main()
