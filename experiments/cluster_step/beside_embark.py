"""Bytes that our step and EMBark's move in a GPU's memory, beside each other.

python -m experiments.cluster_step.beside_embark
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embark_jax import planner, simulator
from embark_jax.planner.cost.phases import phases
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.plans import fleet
from embark_jax.simulator import Job
from embark_jax.simulator.tasks import MEMORY
from experiments.cluster_step.run import NODES, changed, cumulative
from experiments.embark_table1.system import (
    best_clusters,
    plan_embark,
    simulate_embark,
)

CASES = (("t180", 65_536), ("t180", 135_168), ("t200", 65_536), ("t200", 135_168))
OURS = {
    "look up and pool rows": {"lookup"},
    "sum row gradients": {"gradients"},
    "buffers of exchanges": {"row exchange", "gradient exchange", "square exchange"},
    "sort ids, make indices": {"sort", "id exchange"},
    "update rows": {"update"},
}
EMBARK = {
    "look up and pool rows": {"look up", "look up replicated", "pool"},
    "sum row gradients": {"reduce gradients", "reduce replicated"},
    "buffers of exchanges": {"add up in node", "gather gradients"},
    "sort ids, make indices": {"sort ids", "arrange ids", "index ids"},
    "update rows": {"update rows", "update replicated"},
}


def ours(job: Job) -> dict[str, np.ndarray]:
    """``[devices]`` bytes of our step with all changes, by phase."""
    *_, (_, changes) = cumulative()
    workload = changed(job, changes).workload
    plan = planner.plan_for(workload, job.tables, job.features)
    totals: dict[str, np.ndarray] = {}
    model = ProgramModel(workload)
    for phase in phases(plan.placements, job.features, workload, model):
        totals[phase.name] = totals.get(phase.name, 0.0) + phase.memory_bytes
    return totals


def embark(job: Job) -> dict[str, np.ndarray]:
    """``[devices]`` bytes of EMBark's step, by task; starting kernels counts a bit."""
    step = simulate_embark("", job, plan_embark(job, best_clusters(job)))
    device, efficiency = job.workload.fleet.device, job.workload.fleet.efficiency
    bytes_per_ms = device.memory_bytes_per_s * efficiency.memory / 1e3
    return {
        span.task.name: span.task.ms * bytes_per_ms
        for span in step.timeline.spans
        if MEMORY & span.task.resources and span.task.phase != "dense"
    }


def grouped(
    totals: Mapping[str, np.ndarray], kinds: Mapping[str, set[str]]
) -> list[np.ndarray]:
    """``[devices]`` bytes of each kind of work."""
    if unknown := set(totals).difference(*kinds.values()):
        raise ValueError(f"no kind for {sorted(unknown)}")
    return [
        sum((totals[name] for name in names & set(totals)), start=np.zeros(1))
        for names in kinds.values()
    ]


def main() -> None:
    print("| GB in memory, ours / EMBark | " + " | ".join(OURS) + " | all | busiest |")
    print((len(OURS) + 3) * "|---" + "|")
    for name, batch in CASES:
        listed, machines = planner.load_table_list(name), fleet.dgx_h100(NODES[-1])
        job = simulator.job_of_list(listed, machines, batch, kernels="mosaic_gpu")
        of_both = grouped(ours(job), OURS), grouped(embark(job), EMBARK)
        cells = [
            " / ".join(f"{each.mean() / 1e9:.2f}" for each in pair)
            for pair in zip(*of_both, strict=True)
        ]
        sums = [sum(kinds, start=np.zeros(1)) for kinds in of_both]
        cells.append(" / ".join(f"{each.mean() / 1e9:.1f}" for each in sums))
        cells.append(" / ".join(f"{each.max() / 1e9:.1f}" for each in sums))
        print(f"| {name}, {batch:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
