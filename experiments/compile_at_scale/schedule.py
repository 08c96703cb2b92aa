"""Lists the collectives of train steps compiled for H100s that are not there, in the
order of the schedule, with the kernels between the start and the end of each.

    gpu-venv/bin/python -m experiments.compile_at_scale.schedule [--nodes 1 16]

Writes schedule.md beside this. See README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections import Counter
from pathlib import Path

import jax

from embark_jax import planner
from embark_jax.plans import fleet
from embark_jax.plans.options import DenseWire
from embark_jax.plans.wire import FLOAT32, Wire
from experiments.compile_at_scale.compile import MODELS
from experiments.compile_at_scale.program import COMPUTES, Collective, collectives
from experiments.step_bytes.absent import absent_mesh, compile_step
from experiments.step_bytes.audit import phase_of

HERE = Path(__file__).parent
MODEL = "dlrm_dcnv2"
WIRES: dict[DenseWire, Wire] = {
    "float32": FLOAT32,
    "bfloat16": Wire("bfloat16", "bfloat16", "bfloat16"),
}


def compiled_step(
    nodes: int, wire: DenseWire, look_ahead: bool
) -> tuple[jax.stages.Compiled, planner.Workload]:
    """The step with our kernels and bfloat16 dense layers; rows, their gradients and
    those of the dense layers travel in one format."""
    listed = planner.read_table_list((MODELS / f"{MODEL}.yaml").read_text())
    machines = fleet.Fleet(fleet.dgx_h100().device, nodes, 8)
    workload = listed.workload(
        machines, wire=WIRES[wire], overlap=look_ahead, kernels="mosaic_gpu"
    )
    dense = dataclasses.replace(workload.dense, states=1)
    workload = dataclasses.replace(workload, dense=dense)
    plan = planner.plan_for(workload, *listed.specs())
    compiled, _ = compile_step(
        listed,
        plan,
        absent_mesh(machines),
        workload.optimizer,
        "mosaic_gpu",
        "bfloat16",
        WIRES[wire],
        wire,
        look_ahead,
    )
    return compiled, workload


def beside(collective: Collective) -> str:
    """Number of kernels between its start and its end, and in which phases."""
    phases = Counter(map(phase_of, collective.between))
    listed = ", ".join(f"{phase} {count}" for phase, count in phases.most_common())
    return f"{len(collective.between)}" + f" ({listed})" * bool(listed)


def rows(found: list[Collective]) -> list[str]:
    lines = [
        "| kernels before | collective | of | MB | kernels beside |",
        "|---:|---|---|---:|---|",
    ]
    for collective in found:
        types = "+".join(sorted(collective.types))
        lines.append(
            f"| {collective.earlier} | {collective.kind} {types} "
            f"| {phase_of(collective.purpose)} | {collective.buffer_bytes / 1e6:.3f} "
            f"| {beside(collective)} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", nargs="+", type=int, default=(1, 16))
    nodes = parser.parse_args().nodes
    summary = [
        "| GPUs | wires | look-ahead | all-to-alls | all-reduces | nothing beside "
        "| kernels | temporaries, MB |",
        "|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    details = []
    for number, wire, look_ahead in itertools.product(nodes, WIRES, (False, True)):
        compiled, workload = compiled_step(number, wire, look_ahead)
        hlo = compiled.as_text() or ""
        found = collectives(hlo)
        kinds = Counter(collective.kind for collective in found)
        entry = hlo[hlo.index("\nENTRY") :]
        alone = sum(not collective.between for collective in found)
        ahead = "yes" if look_ahead else "no"
        summary.append(
            f"| {8 * number} | {wire} | {ahead} | {kinds['all-to-all']} "
            f"| {kinds['all-reduce']} | {alone} | {len(COMPUTES.findall(entry))} "
            f"| {compiled.memory_analysis().temp_size_in_bytes / 1e6:.1f} |"
        )
        title = f"{8 * number} GPUs, {wire}, look-ahead: {ahead}"
        details += [
            "",
            f"## {title}, {workload.batch_size:,} samples",
            "",
            *rows(found),
        ]
        print(*details[-len(found) - 4 :], sep="\n", flush=True)
    (HERE / "schedule.md").write_text("\n".join([*summary, *details]) + "\n")


if __name__ == "__main__":
    main()
