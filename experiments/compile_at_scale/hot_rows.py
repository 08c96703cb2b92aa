"""Compiles steps with and without hot rows, for as many CPU devices as a plan has GPUs.

    python -m experiments.compile_at_scale.hot_rows

Needs no CUDA. Writes hot_rows.json after each case, goes on where it was
stopped, and writes hot_rows.md. See README.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = tuple(
    (model, nodes, hot)
    for nodes in (1, 16)
    for model in ("dlrm_dcnv2", "t180")
    for hot in (False, True)
)
"""Models, nodes of eight GPUs, and whether rows may be hot."""
GPUS_PER_NODE = 8
ZIPF_EXPONENT = 1.1
# What becomes of the collectives after they are chosen does not matter here.
FLAGS = (
    "--xla_force_host_platform_device_count={} --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)


def case(name: str, nodes: int, hot: bool) -> dict[str, Any]:
    """Plans and compiles; to be called in a process of its own, with ``FLAGS``."""
    import jax

    from embark_jax import planner
    from embark_jax.plans import fleet
    from embark_jax.plans.forced import ForcedPlacement
    from experiments.compile_at_scale.compile import (
        MODELS,
        compiled_traffic,
        planned_traffic,
    )
    from experiments.compile_at_scale.program import collectives
    from experiments.step_bytes.absent import compile_step

    listed = planner.read_table_list((MODELS / f"{name}.yaml").read_text())
    machines = fleet.dgx_h100(nodes)
    tables, features = listed.specs()
    workload = listed.workload(machines, None, ZIPF_EXPONENT, overlap=False)
    forced = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    plan = planner.plan_for(workload, tables, features, forced=forced)
    begin = time.perf_counter()
    compiled, state = compile_step(listed, plan, plan.make_mesh(), workload.optimizer)
    hlo = compiled.as_text()
    assert hlo is not None
    found = collectives(hlo)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return {
        "model": listed.name,
        "devices": plan.devices,
        "hot_tables": sum(each.hot_rows > 0 for each in plan.placements),
        "hot_rows": sum(each.hot_rows for each in plan.placements),
        "compile_s": time.perf_counter() - begin,
        "compiled": compiled_traffic(found, GPUS_PER_NODE),
        "planned": planned_traffic(plan, workload, parameters),
    }


def table(results: list[dict[str, Any]]) -> str:
    kinds = ("all-to-all", "all-reduce", "all-gather")
    lines = [
        "| model, GPUs | hot rows | "
        + " | ".join(f"MB of {kind}s: program | plan" for kind in kinds)
        + " | MB sent inside nodes | between nodes | compile, s |",
        "|---|---:" + "|---:" * (2 * len(kinds) + 3) + "|",
    ]
    for each in results:
        cells = [f"{each['model']}, {each['devices']}", f"{each['hot_rows']:,}"]
        for kind in kinds:
            for side in ("compiled", "planned"):
                cells.append(f"{each[side]['buffer_bytes'].get(kind, 0) / 1e6:.4f}")
        cells += [
            f"{each['compiled'][where] / 1e6:.1f}"
            for where in ("inside_bytes", "between_bytes")
        ]
        lines.append("| " + " | ".join([*cells, f"{each['compile_s']:.0f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    path = HERE / "hot_rows.json"
    results = json.loads(path.read_text()) if path.exists() else []
    for name, nodes, hot in CASES[len(results) :]:
        flags = FLAGS.format(nodes * GPUS_PER_NODE)
        command = [sys.executable, "-m", "experiments.compile_at_scale.hot_rows"]
        command += [name, str(nodes), str(int(hot))]
        done = subprocess.run(
            command, env=os.environ | {"XLA_FLAGS": flags}, stdout=-1, check=True
        )
        results.append(json.loads(done.stdout.splitlines()[-1]))
        path.write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "hot_rows.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        name, nodes, hot = sys.argv[1:]
        print(json.dumps(case(name, int(nodes), hot == "1")))
    else:
        main()
