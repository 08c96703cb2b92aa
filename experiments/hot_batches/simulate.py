"""What batches of hot rows alone gain on FAE's machine, simulated; see README.md.

python experiments/hot_batches/simulate.py            # simulated.json
python experiments/hot_batches/simulate.py transfers  # transfers.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embark_jax import planner, simulator
from embark_jax.planner.request.workload import Workload, table_uses
from embark_jax.planner.search.params import DEFAULT
from embark_jax.planner.search.ways import fewest_slots
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Tier
from embark_jax.plans.storage import Placement

RESULTS = Path(__file__).with_name("simulated.json")
TRANSFERRED = Path(__file__).with_name("transfers.json")
BUDGET_BYTES = 512e6
ZIPF_EXPONENT = 1.05
CASES = (("rmc2", 1024), ("rmc3", 1024), ("rmc2", 16_384), ("rmc3", 16_384))
SHARES = (0.25, 0.5, 0.82, 0.95)
"""Shares of all-hot samples; FAE counted 0.82 of Terabyte's with 512 MB."""
FAE_SHARE = 0.82
SAMPLES_A_GPU = 1024
TRANSFERS = {
    "host_ms": ("row store",),
    "exchange_ms": ("id exchange", "row exchange", "gradient exchange"),
    "sum_ms": ("all-reduce", "capacity check"),
}
"""Phases of a step that move something from or to a device."""


def hot_rows(
    workload: Workload, job: simulator.Job, budget_bytes: float
) -> dict[str, ForcedPlacement]:
    """Hot rows of all tables by one threshold of frequency, within a budget."""
    uses = table_uses(job.tables, job.features, workload)
    low, high = 1e-15, 1.0
    while high > low * 1.001:
        threshold = (low * high) ** 0.5
        counts = []
        for use in uses:
            probability, rows = use.skew.probabilities(use.rows)
            counts.append(int(rows[probability * use.ids >= threshold].sum()))
        taken = sum(
            4 * count * use.dim for count, use in zip(counts, uses, strict=True)
        )
        low, high = (low, threshold) if taken < budget_bytes else (threshold, high)
    return {
        table.name: ForcedPlacement("dp")
        if count >= table.rows
        else ForcedPlacement(hot_rows=max(1, count))
        for table, count in zip(job.tables, counts, strict=True)
    }


def planned(
    job: simulator.Job, forced: dict[str, ForcedPlacement], tier: Tier
) -> tuple[Placement, ...]:
    """Placements with cold rows on devices, or in host memory behind as few slots as a
    batch needs."""
    tables = job.tables
    if tier == "host":
        uses = table_uses(tables, job.features, job.workload)
        tables = [
            table
            if forced[table.name].cluster == "dp"
            else dataclasses.replace(
                table, tier=tier, slots=fewest_slots(use, job.workload, DEFAULT)
            )
            for table, use in zip(tables, uses, strict=True)
        ]
    return planner.plan_for(
        job.workload, tables, job.features, forced=forced
    ).placements


def measure(model: str, batch: int, tier: Tier) -> list[dict[str, Any]]:
    """Steps of one model in its own order of samples, and sorted."""
    listed = planner.load_table_list(model)
    job = simulator.job_of_list(listed, fleet.v100(1, 4), batch, ZIPF_EXPONENT)
    placements = planned(job, hot_rows(job.workload, job, BUDGET_BYTES), tier)
    own_ms = simulator.simulate_program(job, placements).timeline.step_ms
    free = planner.plan_for(job.workload, job.tables, job.features)
    free_ms = simulator.simulate_program(job, free.placements).timeline.step_ms
    results = []
    for share in SHARES:
        hot, mixed = simulator.simulate_hot_batches(job, placements, share)
        hot_ms, mixed_ms = hot.timeline.step_ms, mixed.timeline.step_ms
        mean_ms = share * hot_ms + (1 - share) * mixed_ms
        results.append(
            {
                "model": model,
                "batch": batch,
                "cold_rows": tier,
                "all_hot_share": share,
                "hot_rows": sum(p.replicated_rows for p in placements),
                "planners_own_ms": free_ms,
                "own_order_ms": own_ms,
                "all_hot_ms": hot_ms,
                "mixed_ms": mixed_ms,
                "mean_ms": mean_ms,
            }
        )
    return results


def transfers(model: str, gpus: int) -> list[dict[str, Any]]:
    """Steps with cold rows in host memory, the batch growing with the GPUs as FAE's:
    without hot rows, with them, and with batches sorted."""
    listed = planner.load_table_list(model)
    batch = SAMPLES_A_GPU * gpus
    job = simulator.job_of_list(listed, fleet.v100(1, gpus), batch, ZIPF_EXPONENT)
    cold = {table.name: ForcedPlacement(hot_rows=0) for table in job.tables}
    hot = planned(job, hot_rows(job.workload, job, BUDGET_BYTES), "host")
    own = simulator.simulate_program(job, hot)
    all_hot, mixed = simulator.simulate_hot_batches(job, hot, FAE_SHARE)
    return [
        {"model": model, "gpus": gpus, "batch": batch, "rows": rows, **links(steps)}
        for rows, steps in (
            (
                "all in host memory",
                [(1.0, simulator.simulate_program(job, planned(job, cold, "host")))],
            ),
            ("hot ones on devices", [(1.0, own)]),
            ("sorted batches", [(FAE_SHARE, all_hot), (1 - FAE_SHARE, mixed)]),
        )
    ]


def links(steps: Sequence[tuple[float, simulator.Simulation]]) -> dict[str, float]:
    """Mean ms of a step, and of its transfers by kind, of an average device."""
    mean = {"step_ms": sum(share * each.timeline.step_ms for share, each in steps)}
    for kind, phases in TRANSFERS.items():
        mean[kind] = sum(
            share * float((span.end_ms - span.start_ms).mean())
            for share, each in steps
            for span in each.timeline.spans
            if span.task.phase in phases and span.task.communicates
        )
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("steps", "transfers"))
    if parser.parse_args().what == "transfers":
        cases = [
            c for m in ("rmc2", "rmc3") for g in (1, 2, 4) for c in transfers(m, g)
        ]
        TRANSFERRED.write_text(json.dumps(cases, indent=1) + "\n")
        for case in cases:
            figures = " | ".join(f"{case[k]:.3f}" for k in ("step_ms", *TRANSFERS))
            print(
                f"| {case['model'].upper()} | {case['gpus']} | {case['batch']:,} | "
                f"{case['rows']} | {figures} |"
            )
        return
    results = [
        case
        for model, batch in CASES
        for tier in ("device", "host")
        for case in measure(model, batch, tier)
    ]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for case in results:
        print(
            f"| {case['model'].upper()} | {case['batch']:,} | {case['cold_rows']} | "
            f"{case['all_hot_share']:.0%} | {case['planners_own_ms']:.3f} | "
            f"{case['own_order_ms']:.3f} | {case['all_hot_ms']:.3f} | "
            f"{case['mixed_ms']:.3f} | {case['mean_ms']:.3f} | "
            f"{case['own_order_ms'] / case['mean_ms']:.2f} |"
        )


if __name__ == "__main__":
    main()
