"""Our own step and kernels on one H200 (``experiments/gpu``), priced and simulated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from embark_jax.config.table_lists import read_table_list
from embark_jax.planner import price
from embark_jax.planner.cost.rates import Rates
from embark_jax.plans import fleet
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.simulator import simulate_program
from experiments.embark_table1.job import Job, job_of_list
from experiments.predicted_measured.cases import Case, Constants
from experiments.predicted_measured.kernels import bytes_alone
from experiments.predicted_measured.systems import MODEL

RESULTS = Path(__file__).parents[1] / "gpu" / "results.json"
ADDRESS = "../gpu/README.md"
BATCH, EXPONENT = 65_536, 1.1
PARTS = {
    "ids": ("route_ms", ("sort", "id exchange")),
    "lookup and update": (
        "lookup_and_update_ms",
        ("sort", "id exchange", "lookup", "gradients", "update"),
    ),
}
"""Field of a measured part of the step, and the phases that it has."""
ROWS, WIDTH, IDS = 2**24, 128, 2**22
"""Rows and width of the table of single kernels, and ids of a batch."""
KERNELS = {
    "L128h1u": (1, 0.0, ("lookup",)),
    "L128h10u": (10, 0.0, ("lookup",)),
    "L128h100u": (100, 0.0, ("lookup",)),
    "L128h10z": (10, EXPONENT, ("lookup",)),
    "SUu": (1, 0.0, ("gradients", "update")),
    "SUz": (1, EXPONENT, ("gradients", "update")),
}
"""Ids a bag, skew and phases of each kernel in its own call."""


def phases_ms(job: Job, phases: tuple[str, ...]) -> float:
    """Returns the planner's price of some phases, all tables in DP on one device."""
    placements = [Placement(table, "dp") for table in job.tables]
    priced = price(placements, job.features, job.workload)
    items = (item for item in priced.work_items() if item.phase in phases)
    return float(sum(item.step_ms.sum() for item in items))


def cases(constants: Constants) -> Iterator[Case]:
    """Yields a case for each step, part of a step, and kernel."""
    results = json.loads(RESULTS.read_text())
    machine = dataclasses.replace(
        fleet.load("dgx-h200", 1, 1), efficiency=constants.hopper
    )

    def case(name: str, measured_ms: float, predicted_ms: float) -> Case:
        return Case("our H200", name, "ms", measured_ms, predicted_ms, ADDRESS)

    listed = read_table_list(MODEL.read_text())
    for title, kernels in (("plain XLA", "xla"), ("kernels", "mosaic_gpu")):
        job = job_of_list(
            listed,
            machine,
            BATCH,
            zipf_exponent=EXPONENT,
            optimizer="rowwise_adagrad",
            kernels=kernels,
        )
        # In the program that was measured embeddings were float32.
        dense = dataclasses.replace(job.workload.dense, embedding_dtype="float32")
        workload = dataclasses.replace(job.workload, dense=dense)
        job = dataclasses.replace(job, workload=workload)
        measured = results["steps"][title]
        placements = [Placement(table, "dp") for table in job.tables]
        step = simulate_program(placements, job.features, job.workload)
        yield case(f"step, {title}", measured["step_ms"], step.timeline.step_ms)
        for part, (field, phases) in PARTS.items():
            predicted = phases_ms(job, phases)
            yield case(f"{part}, {title}", measured[field], predicted)
    network = job.workload.dense.layers
    rates, stacks = Rates(machine), (network.bottom, network.cross, network.top)
    forward_ms = sum(rates.product_ms(BATCH, one) for each in stacks for one in each)
    gemms = [
        k
        for k in results["step_kernels_ms"]
        if "gemm" in k["name"] or "nvjet" in k["name"]
    ]
    yield case("products of a step", sum(k["ms"] for k in gemms), 3 * forward_ms)
    table = TableSpec("t", ROWS, WIDTH)
    alike = dataclasses.replace(machine, efficiency=bytes_alone(constants.hopper))
    for name, (hotness, exponent, phases) in KERNELS.items():
        workload = dataclasses.replace(
            job.workload,
            fleet=alike,
            batch_size=IDS // hotness,
            zipf_exponent=exponent,
        )
        alone = Job([table], [FeatureSpec("t", hotness=hotness)], workload)
        measured_ms = results["milliseconds"]["now"][name]
        yield case(name, measured_ms, phases_ms(alone, phases))
