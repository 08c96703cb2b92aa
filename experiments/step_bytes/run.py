"""Compares what a train step moves in device memory with the least that it must move.

    python -m experiments.step_bytes.run [--cases "dlrm_dcnv2 1" …] [--kernels xla …]

Steps are compiled for GPUs that this machine lacks, and ``hlo.py`` reads the programs
instruction by instruction. Writes results.json beside this and prints a table. Needs
`pip install -e .[gpu-compile]`. See README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from embark_kernels import Implementation

from embark_jax.config.table_lists import read_table_list
from embark_jax.planner import (
    Workload,
    plan_for,
    price,
)
from embark_jax.planner.cost.candidates import candidates_of, uses_of
from embark_jax.planner.request.dense import DenseNetwork, network_of
from embark_jax.plans import fleet, traffic
from embark_jax.plans.placement import row_ranges
from embark_jax.plans.plan import Plan
from embark_jax.train.absent import absent_mesh
from experiments.embark_table1.job import job_of_list
from experiments.results import output_of
from experiments.step_bytes.absent import compile_step
from experiments.step_bytes.hlo import Moved, Program

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "configs" / "models"
CASES = {
    "dlrm_dcnv2 1": {"zipf_exponent": 0.0, "optimizer": "rowwise_adagrad"},
    "dlrm_dcnv2 8": {"zipf_exponent": 0.0, "optimizer": "rowwise_adagrad"},
    "t180 1": {"batch_size": 8192},
    "t180 8": {},
    "t510 1": {"batch_size": 2048},
    "t510 8": {"batch_size": 16_384},
}
"""Models and numbers of H200s. The whole MLPerf model fits one with row-wise Adagrad;
its data draw the ids of bags uniformly. Of T180 and T510, one GPU gets an eighth of a
batch, and of the rows of large tables."""
SHRUNK = ("t180 1", "t510 1")
LARGE_ROWS = 100_000
KERNELS = ("xla", "mosaic_gpu")
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

SORT_KEY_BYTES = 4
EXCHANGED_IN = {
    "id exchange": "route",
    "row exchange": "lookup",
    "gradient exchange": "row_gradients",
    "square exchange": "row_gradients",
}
"""The phase of the program to which each exchange of the cost model belongs."""

Terms = dict[tuple[str, str], float]
"""Bytes, by the phase of the program and by what it moves."""


def phase_of(purpose: str) -> str:
    """The innermost scope in an instruction's name."""
    scopes = re.findall(r"[a-z_]+", purpose.rpartition("/")[0])
    scopes = [RENAMED.get(each, each) for each in scopes]
    return next((each for each in reversed(scopes) if each in PHASES), "other")


def least_bytes(
    plan: Plan,
    workload: Workload,
    network: DenseNetwork,
    dense_features: int,
    compute_bytes: int,
) -> Terms:
    """The terms of the least that a step must move in a device's memory.

    The step reads and writes once what it cannot do without, in float32 but for rows,
    which are in their table's type, and for what goes into and comes out of dense
    layers, which is in the type that they compute in:

    - the batch is read, and its ids are sorted once, with 32 bits of key and of
      position;
    - each id's row is gathered, and its bag's gradient in the backward pass; in UB,
      owners read each row once more for each device that needs it;
    - pooled rows are written; touched rows and their states are read and written;
    - what travels is written, sent, received and read, as the plan says;
    - a matrix product reads its operands and writes its result, once forward and twice
      backward (once in the first layers, whose inputs need no gradient); cross layers
      read their inputs once more each way, which their products alone do not;
    - an optimizer reads parameters, gradients and states, and writes all but the
      gradients.

    The number of touched rows is expected from the ids' skew, as a mean over devices.

    Args:
      plan: the plan of the tables.
      workload: the workload that the plan was made for.
      network: the dense layers.
      dense_features: number of dense features, which the layers take per sample.
      compute_bytes: bytes of a value that the layers compute with.
    """
    terms: Terms = defaultdict(float)
    batch, value = workload.device_batch, traffic.WORD_BYTES
    ids = sum(feature.hotness for feature in plan.features)
    terms["route", "batch"] = batch * value * (ids + dense_features + 1)
    per_parameter, per_row = workload.state_values
    ranges = row_ranges(plan.placements)
    uses = uses_of(ranges, plan.features, workload)
    of_ranges = [
        candidates_of([rows], [use], workload)
        for rows, use in zip(ranges, uses, strict=True)
    ]
    for rows, candidate in zip(ranges, of_ranges, strict=True):
        (dim,), (hotness,), (filled,) = (
            candidate.dim,
            candidate.hotness,
            candidate.filled,
        )
        found = batch * hotness * filled
        (row_value,) = candidate.value_bytes
        row_bytes, sum_bytes = row_value * dim, value * dim
        terms["route", "sort"] += _sort_bytes(found)
        terms["lookup", "rows"] += found * row_bytes
        if rows.cluster == "ub":
            sent = candidate.expected_unique(batch).sum()
            terms["lookup", "rows of owners"] += sent * row_bytes
        terms["lookup", "pooled rows"] += batch * candidate.bags.sum() * sum_bytes
        terms["row_gradients", "bag gradients"] += found * sum_bytes
        states = dim * per_parameter + per_row * rows.column_shards
        touched = candidate.expected_unique(workload.batch_size).sum()
        if rows.cluster != "dp":
            touched /= workload.devices
        terms["update", "rows and states"] += 2 * touched * (row_bytes + value * states)
    priced = price(plan.placements, plan.features, workload, plan.capacities)
    for item in priced.work_items():
        if item.collective is not None:
            # Written and sent, received and read.
            terms[EXCHANGED_IN[item.phase], item.phase] += 4 * item.buffer
    _add_dense(terms, network, batch, compute_bytes)
    updated = 3 + 2 * workload.dense.states
    terms["dense_update", "parameters"] = value * updated * network.parameters
    return dict(terms)


def _add_dense(
    terms: Terms, network: DenseNetwork, batch: int, value_bytes: int
) -> None:
    for products in (network.bottom, network.cross, network.top):
        for i, (inputs, outputs, *_) in enumerate(products):
            moved = batch * (inputs + outputs) + inputs * outputs
            times = 2 if products is network.bottom and i == 0 else 3
            terms["dense", "products"] += value_bytes * times * moved
    # Forward reads x0 and x. Backward reads the gradient, x0 and the product, and
    # writes the gradient of the product and, added up, that of x0.
    crossed = batch * network.width * network.cross_layers
    terms["dense", "cross layers"] = value_bytes * (2 + 5) * crossed


def _sort_bytes(ids: float) -> float:
    """Bytes of sorting keys with their positions: each digit reads and writes both, and
    one more pass counts the digits of the keys."""
    return ids * SORT_KEY_BYTES * (4 * SORT_KEY_BYTES + 1)


def audit(case: str, kernels: Implementation, compute_dtype: str) -> dict[str, Any]:
    """Plans and compiles the step of a case, and counts its bytes.

    Returns:
      ``bytes`` and ``least_bytes`` per device, with the milliseconds that both take at
      90 % of its memory bandwidth; the same for each phase; the terms of the least; and
      the bytes of temporaries that XLA plans.
    """
    model, gpus = case.split()
    text = (MODELS / f"{model}.yaml").read_text()
    if case in SHRUNK:
        text = re.sub(r"(?<=\brows: )[\d_]+", an_eighth, text)
    listed = read_table_list(text)
    machines = fleet.load("dgx-h200", 1, int(gpus))
    workload = job_of_list(listed, machines, **CASES[case], overlap=False).workload
    plan = plan_for(workload, *listed.specs())
    mesh = absent_mesh(machines, AMPLE_MEMORY_BYTES)
    compiled, _ = compile_step(
        listed, plan, mesh, workload.optimizer, kernels, compute_dtype
    )
    moved = Program(compiled.as_text() or "").moved()
    assert listed.dense is not None
    network = network_of(listed.dense, *listed.specs(), listed.dense.features)
    assert network is not None
    value_bytes = jnp.dtype(compute_dtype).itemsize
    features = listed.dense.features
    least = least_bytes(plan, workload, network, features, value_bytes)
    rate = COPY_SHARE * machines.device.memory_bytes_per_s
    total, least_total = sum(each.bytes for each in moved), sum(least.values())
    return {
        "batch_size": plan.batch_size,
        "bytes": total,
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "least_bytes": least_total,
        "ms": 1e3 * total / rate,
        "least_ms": 1e3 * least_total / rate,
        "phases": {phase: _of_phase(phase, moved, least) for phase in PHASES},
        "least": {f"{phase}: {what}": n for (phase, what), n in least.items()},
        "jax": jax.__version__,
    }


def _of_phase(phase: str, moved: list[Moved], least: dict) -> dict[str, float]:
    mine = [each for each in moved if phase_of(each.purpose) == phase]
    return {
        "read_bytes": sum(each.read_bytes for each in mine),
        "written_bytes": sum(each.written_bytes for each in mine),
        "least_bytes": sum(n for (of, _), n in least.items() if of == phase),
        "instructions": sum(each.bytes > 0 for each in mine),
    }


def an_eighth(rows: re.Match) -> str:
    count = int(rows[0])
    return str(count // 8 if count > LARGE_ROWS else count)


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model, GPUs, kernels | GB moved | at least | ratio | ms | at least "
        "| GB of temporaries |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case, result in found.items():
        moved, least = result["bytes"] / 1e9, result["least_bytes"] / 1e9
        lines.append(
            f"| {case} | {moved:.1f} | {least:.1f} | {moved / least:.2f} "
            f"| {result['ms']:.1f} | {result['least_ms']:.1f} "
            f"| {result['temporary_bytes'] / 1e9:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--kernels", nargs="*", default=KERNELS, choices=KERNELS)
    parser.add_argument("--compute-dtype", default="float32", help="of dense layers")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="in this process")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(audit(*asked.cases, *asked.kernels, asked.compute_dtype)))
        return
    # Results of some cases are added to those of others.
    free = ("cases", "kernels")
    out = output_of(parser, asked, HERE / "results.json", free)
    found = json.loads(out.read_text()) if out.exists() else {}
    for case in asked.cases:
        for kernels in asked.kernels:
            # In a process of its own: compilers keep memory.
            command = [sys.executable, "-m", "experiments.step_bytes.run", "--here"]
            command += ["--cases", case, "--kernels", kernels]
            command += ["--compute-dtype", asked.compute_dtype]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{case} {kernels}: {done.stderr[-2000:]}")
            result = json.loads(done.stdout.splitlines()[-1])
            found[f"{case} {kernels}"] = result
            out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(dict(sorted(found.items()))))


if __name__ == "__main__":
    main()
