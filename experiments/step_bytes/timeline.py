"""Times a train step by its compiled program, beside the simulated step.

    python -m experiments.step_bytes.timeline [--cases "DLRM-DCNv2, 8" …]

The step is compiled for GPUs that this machine lacks. Each instruction of the scheduled
program, read by ``hlo.py``, is priced as planner and simulator price their own: kernels
run one after the other, collectives beside them, until their result is read. Writes
timeline.json beside this and prints the table of README.md. Needs
`pip install -e .[gpu-compile]`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from embark_jax import simulator
from embark_jax.config import reading
from embark_jax.planner import Workload
from embark_jax.planner.cost.rates import Rates
from embark_jax.plans import traffic
from embark_jax.plans.clusters import Reach
from embark_jax.run import dry_run, experiment
from embark_jax.simulator.step import APPLIED
from embark_jax.train.absent import absent_mesh, allow_absent_gpus
from experiments.step_bytes.hlo import COLLECTIVE, Moved, Program
from experiments.step_bytes.run import AMPLE_MEMORY_BYTES, phase_of

OUT = Path(__file__).parent / "timeline.json"
KERNELS = "embedding.kernels=mosaic_gpu", "model.compute_dtype=bfloat16"
UNIFORM = "data.zipf_exponent=0"
"""Shapes count, not values: of rows that repeat, the program says too much."""
MOVIELENS = "configs/experiments/movielens_100k/"
ON_8 = (
    UNIFORM,
    "data.kind=synthetic",
    "fleet=dgx-h100",
    "mesh.nodes=1",
    "mesh.gpus_per_node=8",
)
CASES = {
    "DLRM-DCNv2, 1 H200": (
        *("dlrm_dcnv2", "fleet=dgx-h200", "mesh.gpus_per_node=1", *KERNELS, UNIFORM),
        "embedding.optimizer.kind=rowwise_adagrad",
    ),
    "DLRM-DCNv2, 8": ("dlrm_dcnv2", "fleet=dgx-h100", *KERNELS, UNIFORM),
    "DLRM-DCNv2, 64": (
        "dlrm_dcnv2",
        "fleet=dgx-h100",
        "mesh.nodes=8",
        *KERNELS,
        UNIFORM,
    ),
    "T510, 8 H200": ("t510", "fleet=dgx-h200", *KERNELS, UNIFORM),
    "HSTU, 8": (f"{MOVIELENS}hstu.yaml", *ON_8, "train.batch_size=4096"),
    "DIN, 8": (f"{MOVIELENS}din.yaml", *ON_8, "train.batch_size=65536"),
}
"""Config and its changes, on H100s; the last two in plain XLA."""
PARTS = {
    "route": ("route", "sort", "sort of ids", "sort of slots", "id exchange"),
    "lookup": ("lookup", "row exchange"),
    "dense": ("dense",),
    "dense update": (APPLIED, "dense_update"),
    "row gradients, update": (
        *("gradients", "row_gradients", "gradient exchange", "square exchange"),
        "update",
    ),
}
"""Parts of a step, and the phases of program and simulator that are in each."""
GROUP = re.compile(r"replica_groups=\{\{([\d,]+)\}")
Times = dict[str, float]
"""ms of each part, of the rest, of links, of waiting for them, and of the step."""


def part_of(phase: str) -> str:
    return next((part for part, phases in PARTS.items() if phase in phases), "other")


def collective_ms(moved: Moved, rates: Rates) -> float:
    """Returns the time of a collective; by its groups it is of all devices, of each
    node, or of those of equal rank."""
    fleet, reach = rates.fleet, "fleet"
    found = GROUP.search(moved.instruction.rest)
    group = [int(each) for each in found[1].split(",")] if found else []
    if 1 < len(group) < fleet.devices:
        reach: Reach = "node" if group[1] == group[0] + 1 else "rail"
    rates = rates.of(reach)
    kind, buffer_bytes = COLLECTIVE.match(moved.opcode), moved.read_bytes / moved.turns
    assert kind is not None
    if kind[1] == "all-to-all":
        size = rates.fleet.nodes, rates.fleet.gpus_per_node
        sent = traffic.all_to_all_bytes(buffer_bytes, *size)
        ms = float(rates.links_ms(sent, rates.exchange_us))
    elif kind[1] == "all-reduce":
        ms = rates.all_reduce_ms(buffer_bytes)
    else:
        largest = max(moved.read_bytes, moved.written_bytes) / moved.turns
        ms = rates.all_gather_ms(largest)
    return moved.turns * ms


def program_times(program: Sequence[Moved], workload: Workload) -> Times:
    """Returns the times of a compiled step. Products last as long as they multiply or
    move, whichever is longer."""
    fleet, efficiency = workload.fleet, workload.fleet.efficiency
    rates, times, ends = Rates(fleet), defaultdict(float), {}
    ids = efficiency.xla_ids if workload.kernels == "xla" else efficiency.ids
    clock_ms = links_ms = 0.0
    for moved in program:
        if COLLECTIVE.match(moved.opcode):
            ms = collective_ms(moved, rates)
            links_ms = ends[moved.name] = max(clock_ms, links_ms) + ms
            times["links"] += ms
        if moved.name in ends and not moved.opcode.endswith("-start"):
            reads = moved.name
        elif moved.opcode.endswith("-done"):
            reads = moved.instruction.operands[0]
        elif moved.name in ends:
            continue
        else:
            part = part_of(phase_of(moved.purpose))
            share = ids if part == "route" else None
            kernel_ms = rates.memory_ms(0.0, moved.turns)
            flops_ms = 1e3 * moved.flops / fleet.device.flops_per_s / efficiency.flops
            ms = max(float(rates.memory_ms(moved.bytes, share=share)), flops_ms)
            times[part] += ms + kernel_ms
            times["kernels' own"] += kernel_ms
            clock_ms += ms + kernel_ms
            continue
        waited_ms = max(0.0, ends.get(reads, 0.0) - clock_ms)
        times["waiting for links"] += waited_ms
        clock_ms += waited_ms
    return dict(times) | {"step": clock_ms}


def simulated_times(simulation: simulator.Simulation) -> Times:
    """Returns the times of a simulated step, of a mean device."""
    timeline, times = simulation.timeline, defaultdict(float)
    for span in timeline.spans:
        task = span.task
        part = part_of(APPLIED if task.name.startswith(APPLIED) else task.phase)
        times["links" if task.communicates else part] += float(task.ms.mean())
    times["waiting for links"] = simulation.exposed_share * timeline.step_ms
    return dict(times) | {"step": timeline.step_ms}


def compare(config_name: str, *overrides: str) -> dict[str, Times]:
    """Returns the times of a config's step, by its program and as it is simulated."""
    config = reading.load(config_name, overrides)
    planned = experiment.plan_model(config)
    setup = experiment.build(config, None)
    mesh = absent_mesh(planned.workload.fleet, AMPLE_MEMORY_BYTES)
    compiled, _ = dry_run._compiled(setup, mesh, is_absent=True)
    program = Program(compiled.as_text() or "").moved()
    step = planned.plan.placements, planned.plan.features, planned.workload
    return {
        "program": program_times(program, planned.workload),
        "simulated": simulated_times(simulator.simulate_program(*step)),
    }


def show(found: Mapping[str, Mapping[str, Times]]) -> None:
    """Prints the table of the README."""
    rows = "step", *PARTS, "other", "links", "waiting for links", "kernels' own"
    print("| ms, program · simulated |", " | ".join(found), "|")
    print("|---|" + len(found) * "---|")
    for row in rows:
        pairs = ([t.get(row, 0.0) for t in each.values()] for each in found.values())
        cells = (f"{program:.2f} · {simulated:.2f}" for program, simulated in pairs)
        print(f"| {row} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    cases = parser.parse_args().cases
    allow_absent_gpus()
    found = json.loads(OUT.read_text()) if OUT.exists() else {}
    for case in cases:
        found[case] = compare(*CASES[case])
        OUT.write_text(json.dumps(found, indent=1) + "\n")
    show({case: found[case] for case in CASES if case in found})


if __name__ == "__main__":
    main()
