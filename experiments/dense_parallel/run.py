"""Dense layers on several devices: replicated or split; see README.md.

    python -m experiments.dense_parallel.run timed        # on CPU devices
    python -m experiments.dense_parallel.run simulated    # shipped models on H100s

"timed" writes results.json beside this file; both print a table.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from embark_jax import planner, simulator
from embark_jax.models.layers import MLP
from embark_jax.planner import TableList
from embark_jax.plans import fleet
from embark_jax.plans.options import DenseParallelism
from embark_jax.train.state import param_shardings, sample_sharding
from experiments.cpu_step.timing import OtherCores, median_ms

FOLDER = Path(__file__).parent
WIDTHS = {"DLRM's top": (512, 1024, 1024, 512, 256), "8 × 1024": (1024,) * 9}
"""Widths of input and layers; all layers end in ReLU."""
BATCHES = (256, 2048)
DEVICES = (2, 4)
RATE = 0.01
FLOAT_BYTES = 4
STEPS = 4
"""Steps that are timed together."""
COLLECTIVE = re.compile(r" = (.+?) (all-to-all|all-reduce|all-gather)\(")
FLOATS = re.compile(r"\bf32\[([\d,]*)\]")
"""Dimensions of an array."""

MODELS = ("dlrm_dcnv2", "t180", "t200", "t510", "t7", "rmc2", "rmc3", "rmc4")
NODES = (1, 16)
SMALL_BATCH = 256
"""Samples a device, beside the batch of the list."""

Step = Callable[[Any, jax.Array, jax.Array], tuple[Any, jax.Array]]


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """One node of these devices."""
    kinds = (AxisType.Auto, AxisType.Auto)
    return Mesh(np.array(devices)[None], ("node", "gpu"), axis_types=kinds)


def layers_of(widths: Sequence[int]) -> MLP:
    """The layers, the same each time."""
    return MLP(
        widths[0],
        widths[1:],
        last_relu=True,
        compute_dtype=jnp.float32,
        rngs=nnx.Rngs(0),
    )


def in_one_program(
    kind: DenseParallelism, widths: Sequence[int], devices: Sequence[Any]
) -> tuple[Step, Any, NamedSharding]:
    """A step that ``train.dense`` lays out, its parameters, and the samples' sharding.

    Args:
      kind: "replicated" or "tensor".
      widths: widths of input and layers.
      devices: one node of them.
    """
    mesh = mesh_of(devices)
    graph, params, other = nnx.split(layers_of(widths), nnx.Param, ...)
    shardings = param_shardings(kind, params, mesh)
    samples = sample_sharding(kind, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def loss_of(params, x, y):
        return jnp.mean((nnx.merge(graph, params, other)(x) - y) ** 2)

    def step(params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updated = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
        return updated, loss

    compiled = jax.jit(
        step,
        in_shardings=(shardings, samples, samples),
        out_shardings=(shardings, everywhere),
        donate_argnums=0,
    )
    return compiled, jax.device_put(params, shardings), samples


def clicks(widths: Sequence[int], batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a batch."""
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, widths[0]), np.float32)
    return x, random.standard_normal((batch, widths[-1]), np.float32)


def sent_bytes(hlo: str, devices: int) -> list[float]:
    """What a device sends in each collective of a program, sums in rings."""
    found = []
    for shapes, kind in COLLECTIVE.findall(hlo):
        dims = (
            math.prod(map(int, filter(None, n.split(","))))
            for n in FLOATS.findall(shapes)
        )
        rings = 2 if kind == "all-reduce" else 1
        found.append(rings * FLOAT_BYTES * sum(dims) * (devices - 1) / devices)
    return found


def measure_program(
    kind: DenseParallelism, widths: Sequence[int], batch: int, devices: int
) -> dict[str, float]:
    step, params, samples = in_one_program(kind, widths, jax.devices()[:devices])
    x, y = jax.device_put(clicks(widths, batch), samples)
    compiled = step.lower(params, x, y).compile()  # pyright: ignore
    memory = compiled.memory_analysis()
    sent = sent_bytes(compiled.as_text(), devices)
    state = [params]

    def run(_):
        state[0], loss = compiled(state[0], x, y)
        return loss

    return {
        "step_ms": median_ms(run, range(STEPS), jax.block_until_ready),
        "sent_mb": sum(sent) / 1e6,
        "collectives": len(sent),
        "memory_mb": (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e6,
    }


def timed(batches: Sequence[int]) -> None:
    """Times all kinds, and counts what they send and hold."""
    others, rows = OtherCores(), []
    print(
        "| layers | batch | devices | kind | step, ms | sent, MB | messages | ", end=""
    )
    print("memory, MB |\n" + 8 * "|---" + "|")
    kinds: tuple[DenseParallelism, ...] = ("replicated", "tensor")
    for (name, widths), batch, devices, kind in itertools.product(
        WIDTHS.items(), batches, DEVICES, kinds
    ):
        row = measure_program(kind, widths, batch, devices)
        case = {"layers": name, "batch": batch, "devices": devices, "kind": kind}
        rows.append(case | row)
        print(
            f"| {name} | {batch:,} | {devices} | {kind} | {row['step_ms']:.1f} "
            f"| {row['sent_mb']:.1f} | {row['collectives']:.0f} "
            f"| {row['memory_mb']:.1f} |",
            flush=True,
        )
    record = {"cores": os.cpu_count(), "other_cores": others.read(), "cases": rows}
    (FOLDER / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nother processes kept {record['other_cores']} cores busy")


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
    parser.add_argument("what", choices=("timed", "simulated"))
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    asked = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    if asked.what == "timed":
        timed(asked.batches)
    else:
        simulated(asked.models)


if __name__ == "__main__":
    main()
