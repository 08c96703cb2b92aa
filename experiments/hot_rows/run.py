"""Hot rows, chosen by the planner; see README.md.

    python experiments/hot_rows/run.py gain      # plans with and without hot rows
    python experiments/hot_rows/run.py memory    # hot rows, slots, host memory at once

Each writes a JSON file beside this and prints a table. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embark_jax import planner
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.plan import Plan
from embark_jax.simulator import job_of_list, simulate_program

HERE = Path(__file__).parent
CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 8), ("dlrm_dcnv2", 16), ("t180", 1))
CASES += (("t180", 16), ("synthetic_small", 8))
SKEWS = (0.0, 0.6, 0.9, 1.1, 1.3)

NEAR_MEMORY = tuple(itertools.product(("dlrm_dcnv2", "t7"), (1, 2, 4, 8)))
"""Models and GPUs."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Of device memory, that a step may take."""
HOST_BYTES = 2e12
"""Memory of a DGX H100, which the GPUs of a case have to themselves."""
HOST_LINK_BYTES_PER_S = 64e9
"""PCIe 5, in one direction."""
ZIPF_EXPONENT = 1.1


def gain(model: str, nodes: int, skew: float) -> dict[str, Any]:
    """Both plans of one case."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    workload = listed.workload(
        fleet.dgx_h100(nodes),
        zipf_exponent=skew,
        overlap=False,
        kernels="mosaic_gpu",
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
    assert made.prediction is not None
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


def near_memory(model: str, gpus: int, share: float, hot: bool) -> dict[str, Any]:
    """A plan that may put any table's rows anywhere."""
    machines = fleet.dgx_h100(1, gpus)
    device = dataclasses.replace(
        machines.device,
        host_bytes_per_s=HOST_LINK_BYTES_PER_S,
        host_memory_bytes=HOST_BYTES / gpus,
    )
    machines = dataclasses.replace(machines, device=device)
    listed = planner.load_table_list(model)
    job = job_of_list(listed, machines, zipf_exponent=ZIPF_EXPONENT)
    tables = [dataclasses.replace(table, tier="auto") for table in job.tables]
    workload = dataclasses.replace(
        job.workload, overlap=True, memory_gb=share * device.memory_bytes / 1e9
    )
    forced = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    case = {"model": model, "gpus": gpus, "share": share, "hot": hot}
    try:
        plan = planner.plan_for(workload, tables, job.features, forced=forced)
    except ValueError as error:
        return case | {"problem": str(error)}
    job = dataclasses.replace(job, tables=plan.tables, workload=workload)
    timeline = simulate_program(job, plan.placements).timeline
    prediction, placements = plan.prediction, plan.placements
    assert prediction is not None
    assert prediction.breakdown is not None
    rows = sum(table.rows for table in plan.tables)
    cached = [p for p in placements if p.table.cached]
    hot_rows = sum(p.hot_rows for p in placements)
    slots = sum(p.table.slots or 0 for p in cached)
    return case | {
        "embeddings_ms": prediction.step_ms,
        "bound_ms": prediction.lower_bound_ms,
        "step_ms": timeline.step_ms,
        "row_store_ms": float(timeline.phase_ms().get("row store", [0.0])[0]),
        "exposed_ms": prediction.breakdown.critical_ms.get("row store", 0.0),
        "hot_rows": hot_rows,
        "hot_tables": sum(p.hot_rows > 0 for p in placements),
        "cached_tables": len(cached),
        "slots": slots,
        "host_rows": sum(p.table.rows for p in cached),
        "rows": rows,
    }


def all_near_memory() -> Iterator[dict[str, Any]]:
    """Yields all cases, and prints the table."""
    print(
        "| model | GPUs | share | hot rows | step, ms | embeddings | bound | row store "
        "| exposed | hot rows | slots | on host |\n" + 12 * "|---" + "|"
    )
    for (model, gpus), share, hot in itertools.product(
        NEAR_MEMORY, SHARES, (True, False)
    ):
        case = near_memory(model, gpus, share, hot)
        head = f"| {model} | {gpus} | {share:.0%} | {'yes' if hot else 'no'} | "
        if "problem" in case:
            print(f"{head}{case['problem'][:60]} |")
        else:
            keys = ("step", "embeddings", "bound", "row_store", "exposed")
            figures = " | ".join(f"{case[f'{key}_ms']:.2f}" for key in keys)
            print(
                f"{head}{figures} | {case['hot_rows']:,} | {case['slots']:,} | "
                f"{case['host_rows'] / case['rows']:.0%} |",
                flush=True,
            )
        yield case


PARTS = {"gain": gains, "memory": all_near_memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--cases", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path, help="the JSON file")
    asked = parser.parse_args()
    results = list(itertools.islice(PARTS[asked.what](), asked.cases))
    out = asked.out or HERE / f"{asked.what}.json"
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
