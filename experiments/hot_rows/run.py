"""Plans with hot rows beside plans without; see README.md.

python experiments/hot_rows/run.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.plans.fleet import dgx_h100
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan

CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 8), ("dlrm_dcnv2", 16), ("t180", 1))
CASES += (("t180", 16), ("synthetic_small", 8))
SKEWS = (0.0, 0.6, 0.9, 1.1, 1.3)
RESULTS = Path(__file__).with_name("results.json")


def measure(model: str, nodes: int, skew: float) -> dict[str, Any]:
    """Both plans of one case."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    workload = listed.workload(
        dgx_h100(nodes), None, skew, overlap=False, kernels="mosaic_gpu"
    )
    cold = dict.fromkeys((t.name for t in tables), ForcedPlacement(hot_rows=0))
    found: dict[str, Any] = {"model": model, "gpus": 8 * nodes, "zipf_exponent": skew}
    for name, forced in (("with", {}), ("without", cold)):
        begin = time.process_time()
        made = planner.plan_for(workload, tables, features, forced=forced)
        found[name] = {"cpu_s": time.process_time() - begin, **describe(made)}
    return found


def describe(made: Plan) -> dict[str, Any]:
    """What is told of a plan."""
    breakdown = made.prediction.breakdown
    assert breakdown is not None
    return {
        "step_ms": made.prediction.step_ms,
        "bound_ms": made.prediction.lower_bound_ms,
        "exchanged_bytes": breakdown.padded_bytes * (made.devices - 1),
        "reduced_bytes": breakdown.reduced_bytes,
        "hot_tables": sum(each.hot_rows > 0 for each in made.placements),
        "hot_rows": sum(each.hot_rows for each in made.placements),
    }


def main() -> None:
    results = []
    print(
        "| model | GPUs | Zipf | ms without | with | shorter | MB exchanged without | "
        "with | tables with hot rows | hot rows | CPU s without | with |"
    )
    print("|---" * 12 + "|")
    for model, nodes in CASES:
        for skew in SKEWS:
            each = measure(model, nodes, skew)
            results.append(each)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            hot, cold = each["with"], each["without"]
            shorter = 1 - hot["step_ms"] / cold["step_ms"]
            print(
                f"| {model} | {each['gpus']} | {skew} | {cold['step_ms']:.3f} | "
                f"{hot['step_ms']:.3f} | {shorter:.1%} | "
                f"{cold['exchanged_bytes'] / 1e6:.1f} | "
                f"{hot['exchanged_bytes'] / 1e6:.1f} | {hot['hot_tables']} | "
                f"{hot['hot_rows']:,} | {cold['cpu_s']:.1f} | {hot['cpu_s']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
