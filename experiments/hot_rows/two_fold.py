"""Plans of models beyond device memory: hot rows, slots, host memory; see README.md.

    python experiments/hot_rows/two_fold.py

Writes two_fold.json and two_fold.svg.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from embark_jax import planner, simulator
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement

HERE = Path(__file__).parent
MODELS = ("dlrm_dcnv2", "t7")
GPUS = (1, 2, 4, 8)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Shares of device memory that a step may take."""
HOST_BYTES = 2e12
"""Memory of a DGX H100, which the GPUs of a case have to themselves."""
ZIPF_EXPONENT = 1.1
LINKS = {"PCIe 3": 16e9, "PCIe 5": 64e9, "NVLink-C2C": 450e9}
"""Bytes a second of a device's host link, in one direction."""


def measure(
    model: str, gpus: int, share: float, link: str = "PCIe 5", hot: bool = True
) -> dict[str, Any]:
    """A plan that may put any table's rows anywhere."""
    machines = fleet.dgx_h100(1, gpus)
    device = dataclasses.replace(
        machines.device,
        host_bytes_per_s=LINKS[link],
        host_memory_bytes=HOST_BYTES / gpus,
    )
    machines = dataclasses.replace(machines, device=device)
    listed = planner.load_table_list(model)
    job = simulator.job_of_list(listed, machines, zipf_exponent=ZIPF_EXPONENT)
    tables = [dataclasses.replace(table, tier="auto") for table in job.tables]
    workload = dataclasses.replace(
        job.workload, overlap=True, memory_gb=share * device.memory_bytes / 1e9
    )
    forced = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    case = {"model": model, "gpus": gpus, "share": share, "link": link, "hot": hot}
    begin = time.process_time()
    try:
        plan = planner.plan_for(workload, tables, job.features, forced=forced)
    except ValueError as error:
        return case | {"problem": str(error)}
    planning_s = time.process_time() - begin
    job = dataclasses.replace(job, tables=plan.tables, workload=workload)
    timeline = simulator.simulate_program(job, plan.placements).timeline
    prediction, placements = plan.prediction, plan.placements
    assert prediction is not None
    assert prediction.breakdown is not None
    rows = sum(table.rows for table in plan.tables)
    cached = [p for p in placements if p.table.cached]
    hot_rows = sum(p.hot_rows for p in placements)
    slots = sum(p.table.slots or 0 for p in cached)
    hits = prediction.breakdown.hit_rates
    return case | {
        "planning_s": planning_s,
        "embeddings_ms": prediction.step_ms,
        "bound_ms": prediction.lower_bound_ms,
        "step_ms": timeline.step_ms,
        "row_store_ms": float(timeline.phase_ms().get("row store", [0.0])[0]),
        "exposed_ms": prediction.breakdown.critical_ms.get("row store", 0.0),
        "device_gb": prediction.device_bytes[0] / 1e9,
        "hot_rows": hot_rows,
        "hot_tables": sum(p.hot_rows > 0 for p in placements),
        "cached_tables": len(cached),
        "slots": slots,
        "host_rows": sum(p.table.rows for p in cached),
        "rows": rows,
        "least_hit_rate": min(hits.values(), default=1.0),
    }


def cases() -> Iterator[dict[str, Any]]:
    for model in MODELS:
        for gpus in GPUS:
            for share in SHARES:
                for hot in (True, False):
                    yield measure(model, gpus, share, hot=hot)
            for link in LINKS:
                yield measure(model, gpus, 0.2, link)


def draw(results: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(MODELS)), MODELS, strict=True):
        for number, gpus in enumerate(GPUS):
            for hot in (True, False):
                points = [
                    (100 * case["share"], case["step_ms"])
                    for case in results
                    if (case["model"], case["gpus"]) == (model, gpus)
                    and (case["link"], case["hot"]) == ("PCIe 5", hot)
                    and "step_ms" in case
                ]
                if points:
                    label = f"{gpus} H100" + ("" if hot else ", no hot rows")
                    style = "o-" if hot else ":"
                    axes.plot(
                        *zip(*points, strict=True),
                        style,
                        color=f"C{number}",
                        label=label,
                    )
        axes.set(
            title=model, xlabel="% of device memory", ylabel="ms a step", yscale="log"
        )
        axes.legend(fontsize=7)
    return figure


def main() -> None:
    results = []
    for case in cases():
        if case not in results:
            results.append(case)
        (HERE / "two_fold.json").write_text(json.dumps(results, indent=1) + "\n")
        if "problem" in case:
            print(case["model"], case["gpus"], case["share"], case["problem"][:90])
            continue
        print(
            f"| {case['model']} | {case['gpus']} | {case['share']:.0%} | "
            f"{case['link']} | {case['hot']} | {case['step_ms']:.2f} | "
            f"{case['embeddings_ms']:.2f} | "
            f"{case['bound_ms']:.2f} | {case['row_store_ms']:.2f} | "
            f"{case['exposed_ms']:.2f} | {case['hot_rows']:,} | {case['slots']:,} | "
            f"{case['host_rows'] / case['rows']:.0%} | {case['least_hit_rate']:.0%} | "
            f"{case['planning_s']:.1f} |",
            flush=True,
        )
    draw(results).savefig(HERE / "two_fold.svg")


if __name__ == "__main__":
    main()
