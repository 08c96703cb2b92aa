"""Compares what a train step moves in device memory with the least that it must move.

    python -m experiments.step_bytes.audit MODEL|FILE.yaml --gpus 8 --kernels xla

The step is compiled for GPUs that this machine lacks, and ``hlo.py`` reads its program
instruction by instruction. The figures are printed as JSON. Needs
`pip install -e .[gpu-compile]`.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
from embark_kernels import Implementation

from embark_jax.planner import TableList, Workload, load_table_list, plan_for
from embark_jax.plans import fleet
from experiments.step_bytes.absent import absent_mesh, compile_step
from experiments.step_bytes.hlo import Moved, Program
from experiments.step_bytes.least_bytes import least_bytes

AMPLE_MEMORY_BYTES = 2e11
"""Memory of a GPU on which XLA computes nothing twice to save memory."""
COPY_SHARE = 0.9
"""Share of a GPU's memory bandwidth that a copy reaches."""
PHASES = (
    "route",
    "lookup",
    "dense",
    "dense_update",
    "checks",
    "row_gradients",
    "update",
    "other",
)
"""Scopes by which the step names its instructions; some get no name."""
RENAMED = {"gradients": "row_gradients"}
"""Scopes whose phase has another name in the figures."""
LARGEST = 25
"""How many instructions are listed: those that move the most."""


def phase_of(purpose: str) -> str:
    """The innermost scope in an instruction's name."""
    scopes = re.findall(r"[a-z_]+", purpose.rpartition("/")[0])
    scopes = [RENAMED.get(each, each) for each in scopes]
    return next((each for each in reversed(scopes) if each in PHASES), "other")


def step_bytes(
    listed: TableList,
    workload: Workload,
    implementation: Implementation = "xla",
    compute_dtype: str = "float32",
) -> dict[str, Any]:
    """Plans and compiles the step, and counts its bytes.

    Args:
      listed: tables and dense layers.
      workload: the list's workload on some fleet.
      implementation: the implementation of lookups and updates.
      compute_dtype: dtype in which the dense layers compute.

    Returns:
      ``bytes`` and ``least_bytes`` per device, with the milliseconds that both take at
      90 % of its memory bandwidth; the same for each phase; the terms of the least; and
      the instructions that move the most.

    Raises:
      ValueError: if the list has no dense layers, or no plan fits.
    """
    if listed.dense is None:
        raise ValueError(f"{listed.name} lists no dense layers, so it has no step")
    plan = plan_for(workload, *listed.specs())
    mesh = absent_mesh(workload.fleet, AMPLE_MEMORY_BYTES)
    compiled, _ = compile_step(
        listed, plan, mesh, workload.optimizer, implementation, compute_dtype
    )
    moved = Program(compiled.as_text() or "").moved()
    network = listed.dense.network(*listed.specs())
    value_bytes = jnp.dtype(compute_dtype).itemsize
    features = listed.dense.features
    least = least_bytes(plan, workload, network, features, value_bytes)
    rate = COPY_SHARE * workload.fleet.device.memory_bytes_per_s
    total, least_total = sum(each.bytes for each in moved), sum(least.values())
    return {
        "model": listed.name,
        "device": workload.fleet.device.name,
        "devices": plan.devices,
        "batch_size": plan.batch_size,
        "optimizer": workload.optimizer,
        "zipf_exponent": workload.zipf_exponent,
        "kernels": implementation,
        "compute_dtype": compute_dtype,
        "storages": [storage.name for storage in plan.storages],
        "bytes": total,
        "least_bytes": least_total,
        "ms": 1e3 * total / rate,
        "least_ms": 1e3 * least_total / rate,
        "phases": {phase: _of_phase(phase, moved, least) for phase in PHASES},
        "least": {f"{phase}: {what}": n for (phase, what), n in least.items()},
        "largest": [
            {
                "instruction": each.name,
                "phase": phase_of(each.purpose),
                "purpose": each.purpose,
                "read_bytes": each.read_bytes,
                "written_bytes": each.written_bytes,
            }
            for each in sorted(moved, key=lambda each: -each.bytes)[:LARGEST]
        ],
        "jax": jax.__version__,
    }


def _of_phase(phase: str, moved: list[Moved], least: dict) -> dict[str, float]:
    mine = [each for each in moved if phase_of(each.purpose) == phase]
    return {
        "read_bytes": sum(each.read_bytes for each in mine),
        "written_bytes": sum(each.written_bytes for each in mine),
        "least_bytes": sum(n for (of, _), n in least.items() if of == phase),
        "instructions": len(mine),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables")
    parser.add_argument("--fleet", default="dgx-h200")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--zipf", type=float)
    parser.add_argument("--optimizer")
    parser.add_argument("--kernels", choices=("xla", "mosaic_gpu"), default="xla")
    parser.add_argument("--compute-dtype", default="float32")
    options = parser.parse_args()
    listed = load_table_list(options.tables)
    machines = fleet.load(options.fleet, options.nodes, options.gpus)
    workload = listed.workload(
        machines, options.batch, options.zipf, options.optimizer, overlap=False
    )
    audited = step_bytes(listed, workload, options.kernels, options.compute_dtype)
    print(json.dumps(audited))


if __name__ == "__main__":
    main()
