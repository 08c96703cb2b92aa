"""Compiles steps whose row shards span nodes, with flat and hierarchical exchanges.

    python -m experiments.compile_at_scale.hierarchical

Needs `pip install -e .[gpu-compile]`. Writes hierarchical.json and hierarchical.md
beside this. See README.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.progress import track

from embark_jax import planner
from embark_jax.planner import ProgramModel, TableList, phases
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Exchange
from embark_jax.plans.plan import Plan
from experiments.compile_at_scale.compile import MODELS
from experiments.compile_at_scale.program import collectives
from experiments.step_bytes.absent import absent_mesh, compile_step

HERE = Path(__file__).parent
CASES = (("dlrm_dcnv2", 2), ("dlrm_dcnv2", 16), ("t7", 16))
"""Models, and nodes of eight GPUs."""
EXCHANGES: tuple[Exchange, ...] = ("flat", "hierarchical")
SPLIT_ROWS = 1_000_000
"""Tables with as many rows or more are large."""
GPUS_PER_NODE = 8


def make_plan(listed: TableList, machines: fleet.Fleet, exchange: Exchange) -> Plan:
    """Large tables reduction based on all GPUs, the others replicated: so whatever is
    exchanged is of tables whose row shards span nodes."""
    tables, features = listed.specs()
    workload = listed.workload(machines, overlap=False, kernels="mosaic_gpu")
    forced = {
        table.name: ForcedPlacement("rb", machines.devices, 1, exchange=exchange)
        if table.rows >= SPLIT_ROWS
        else ForcedPlacement("dp")
        for table in tables
    }
    return planner.plan(
        tables,
        features,
        machines,
        workload.batch_size,
        forced=forced,
        zipf_exponent=workload.zipf_exponent,
        optimizer=workload.optimizer,
        kernels=workload.kernels,
    )


def planned_bytes(plan: Plan, listed: TableList, machines: fleet.Fleet) -> list[float]:
    """Bytes that a device sends in exchanges, inside its node and to others."""
    workload = listed.workload(
        machines, plan.batch_size, overlap=False, kernels="mosaic_gpu"
    )
    model = ProgramModel(workload)
    parts = phases(plan.placements, plan.features, workload, model, plan.capacities)
    exchanged = [part for part in parts if part.collective == "all_to_all"]
    return [
        sum(float(part.node_link_bytes.max()) for part in exchanged),
        sum(float(part.network_bytes.max()) for part in exchanged),
    ]


def case(name: str, nodes: int, exchange: Exchange) -> dict[str, Any]:
    listed = planner.read_table_list((MODELS / f"{name}.yaml").read_text())
    machines = fleet.Fleet(fleet.dgx_h100().device, nodes, GPUS_PER_NODE)
    plan = make_plan(listed, machines, exchange)
    optimizer = listed.workload(machines).optimizer
    compiled, _ = compile_step(listed, plan, absent_mesh(machines), optimizer)
    found = collectives(compiled.as_text())
    exchanged = [each for each in found if each.kind == "all-to-all"]
    sent = [each.node_bytes(GPUS_PER_NODE) for each in exchanged]
    return {
        "model": listed.name,
        "devices": plan.devices,
        "exchange": exchange,
        "split_tables": sum(p.row_shards > 1 for p in plan.placements),
        "exchanges": len(exchanged),
        "compiled_bytes": [sum(each) for each in zip(*sent, strict=True)],
        "planned_bytes": planned_bytes(plan, listed, machines),
        "temporaries_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| model, GPUs | split tables | exchange | all-to-alls | MB sent inside nodes: "
        "program | plan | between nodes: program | plan | flat sends |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for i, each in enumerate(results):
        flat = results[i - i % len(EXCHANGES)]
        megabytes = [
            f"{each[side][where] / 1e6:.1f}"
            for where in (0, 1)
            for side in ("compiled_bytes", "planned_bytes")
        ]
        less = flat["compiled_bytes"][1] / each["compiled_bytes"][1]
        cells = [
            f"{each['model']}, {each['devices']}",
            str(each["split_tables"]),
            each["exchange"],
            str(each["exchanges"]),
            *megabytes,
            f"{less:.1f} ×",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    wanted = [(*which, exchange) for which in CASES for exchange in EXCHANGES]
    results = [case(*each) for each in track(wanted, "compiling")]
    (HERE / "hierarchical.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "hierarchical.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
