"""Counts what a train step moves in device memory for each id, beside rows.

    python -m experiments.step_bytes.ids rb --kernels xla

Eight tables of width 128 with 20 ids a bag are in one cluster, on 8 absent H100s, with
65,536 samples. An instruction counts for the ids that its arrays are as long as: those
of a device's own samples, or the slots that it receives (in DP the ids that devices
tell each other). What an instruction that moves rows reads of their ids does not count.
The prices of ids in plain XLA (``plans/clusters.py``) are such figures. Needs
`pip install -e .[gpu-compile]`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict

from embark_jax.planner import plan_for, read_table_list
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Cluster, Kernels
from experiments.step_bytes.absent import absent_mesh, compile_step
from experiments.step_bytes.audit import AMPLE_MEMORY_BYTES, phase_of
from experiments.step_bytes.hlo import Program

TABLES, HOTNESS, WIDTH, SAMPLES = 8, 20, 128, 65_536
LISTED = """
dense: {{features: 13, bottom: [128], top: [1]}}
tables: [{{count: {tables}, rows: {rows}, dim: {width}, hotness: {hotness}}}]
"""


def count(cluster: Cluster, rows: int, kernels: Kernels) -> None:
    """Prints the bytes for each own id, and for each received slot, by instruction."""
    machines = fleet.dgx_h100()
    text = LISTED.format(tables=TABLES, rows=rows, width=WIDTH, hotness=HOTNESS)
    listed = read_table_list(text)
    workload = listed.workload(machines, SAMPLES, overlap=False)
    workload = dataclasses.replace(workload, kernels=kernels)
    tables, features = listed.specs()
    forced = {
        table.name: ForcedPlacement("dp")
        if cluster == "dp"
        else ForcedPlacement(cluster, 1, 1, (device,), "flat", 0)
        for device, table in enumerate(tables)
    }
    plan = plan_for(workload, tables, features, forced=forced)
    own = SAMPLES // machines.devices * TABLES * HOTNESS
    received = own * machines.devices
    if cluster != "dp":  # buffers with slack, so that their length is one of its own
        (name,), received = plan.capacities, own * 5 // 4
        capacities = {name: received // machines.devices}
        plan = dataclasses.replace(plan, capacities=capacities)
    mesh = absent_mesh(machines, AMPLE_MEMORY_BYTES)
    compiled, _ = compile_step(listed, plan, mesh, workload.optimizer, kernels)
    program = Program(compiled.as_text() or "")
    total: defaultdict[tuple[str, bool], float] = defaultdict(float)
    for moved in program.moved():
        purpose = phase_of(moved.purpose)
        if purpose in ("dense", "dense_update", "checks", "update"):
            continue
        if moved.opcode.startswith("all-"):  # priced as an exchange
            continue
        sizes = program.lengths(moved.name)
        if any(size >= WIDTH * own for size in sizes):  # rows
            continue
        of = max((n for n in (own, received) if n in sizes), default=0)
        if not of:
            continue
        kind = "received" if of == received else "own"
        is_sort = moved.purpose.endswith("/sort")
        total[kind, is_sort] += moved.bytes / of
        print(f"{kind:8} {moved.bytes / of:7.1f} {purpose:13} {moved.name}")
    for (kind, is_sort), id_bytes in sorted(total.items()):
        print(f"{kind}, {'sorts' if is_sort else 'beside sorts'}: {id_bytes:.1f} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cluster", choices=("dp", "rb", "ub"))
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--kernels", choices=("xla", "mosaic_gpu"), default="xla")
    options = parser.parse_args()
    count(options.cluster, options.rows, options.kernels)


if __name__ == "__main__":
    main()
