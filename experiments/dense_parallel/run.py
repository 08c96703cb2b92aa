"""Dense layers on several devices, replicated or split: prints the simulated steps.

    python experiments/dense_parallel/run.py

See README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import get_args

from embark_jax import planner, simulator
from embark_jax.planner import TableList
from embark_jax.plans import fleet
from embark_jax.plans.options import DenseParallelism

MODELS = ("dlrm_dcnv2", "t180", "t200", "t510", "t7", "rmc2", "rmc3", "rmc4")
NODES = (1, 16)
SMALL_BATCH = 256
"""Samples a device, beside the batch of the list."""


def steps_ms(listed: TableList, nodes: int, batch: int) -> list[float]:
    """The steps of one plan, which is made for replicated layers."""
    job = simulator.job_of_list(listed, fleet.dgx_h100(nodes), batch)
    plan = planner.plan_for(job.workload, job.tables, job.features)
    steps = []
    for kind in get_args(DenseParallelism):
        dense = dataclasses.replace(job.workload.dense, parallelism=kind)
        workload = dataclasses.replace(job.workload, dense=dense)
        laid_out = dataclasses.replace(job, workload=workload)
        step = simulator.simulate_program(laid_out, plan.placements)
        steps.append(step.timeline.step_ms)
    return steps


def simulated(models: Sequence[str]) -> None:
    print(f"| model | H100 | batch | {' | '.join(get_args(DenseParallelism))} |")
    print("|---" * 6 + "|")
    for model in models:
        listed = planner.load_table_list(model)
        for nodes in NODES:
            for batch in (SMALL_BATCH * 8 * nodes, 65_536):
                try:
                    steps = steps_ms(listed, nodes, batch)
                except ValueError as error:
                    cells = str(error).split(";")[0][:60]
                else:
                    cells = " | ".join(f"{ms:.2f}" for ms in steps)
                print(f"| {model} | {8 * nodes} | {batch:,} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    simulated(parser.parse_args().models)


if __name__ == "__main__":
    main()
