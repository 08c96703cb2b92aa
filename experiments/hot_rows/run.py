"""Plans with hot rows, chosen by the planner, and without; see README.md.

    python experiments/hot_rows/run.py

Writes gain.json beside this and prints a table. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.config.reading import load_table_list
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan
from experiments.embark_table1.job import job_of_list
from experiments.results import output_of

HERE = Path(__file__).parent
CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 8), ("dlrm_dcnv2", 16), ("t180", 1))
CASES += (("t180", 16), ("synthetic_small", 8))
SKEWS = (0.0, 0.6, 0.9, 1.1, 1.3)


def gain(model: str, nodes: int, skew: float) -> dict[str, Any]:
    """Both plans of one case."""
    listed = load_table_list(model)
    machines = fleet.dgx_h100(nodes)
    how = {"zipf_exponent": skew, "overlap": False, "kernels": "mosaic_gpu"}
    job = job_of_list(listed, machines, **how)
    tables, features, workload = job.tables, job.features, job.workload
    cold = dict.fromkeys((t.name for t in tables), ForcedPlacement(hot_rows=0))
    found: dict[str, Any] = {"model": model, "gpus": 8 * nodes, "zipf_exponent": skew}
    for name, forced in (("with", {}), ("without", cold)):
        begin = time.process_time()
        made = planner.plan_for(workload, tables, features, forced=forced)
        found[name] = {"cpu_s": time.process_time() - begin, **describe(made)}
    return found


def describe(made: Plan) -> dict[str, Any]:
    """What is told of a plan."""
    assert made.prediction is not None
    breakdown = made.prediction.breakdown
    return {
        "step_ms": made.prediction.step_ms,
        "bound_ms": made.prediction.lower_bound_ms,
        "exchanged_bytes": breakdown.padded_bytes * (made.devices - 1),
        "reduced_bytes": breakdown.reduced_bytes,
        "hot_tables": sum(each.hot_rows > 0 for each in made.placements),
        "hot_rows": sum(each.hot_rows for each in made.placements),
    }


def gains() -> Iterator[dict[str, Any]]:
    """Yields all cases, and prints the table."""
    print(
        "| model | GPUs | Zipf | ms without | with | shorter | MB exchanged without | "
        "with | tables with hot rows | hot rows | CPU s without | with |"
    )
    print("|---" * 12 + "|")
    for (model, nodes), skew in itertools.product(CASES, SKEWS):
        each = gain(model, nodes, skew)
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
        yield each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = output_of(parser, asked, HERE / "gain.json")
    results = list(itertools.islice(gains(), asked.cases))
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
