"""Dense layers on two and four CPU devices: replicated, split, or in two stages.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
        python -m experiments.dense_parallel.run

writes results.json beside this file and prints the table of the README.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from embark_jax.models.layers import MLP
from embark_jax.plans.options import DenseParallelism
from embark_jax.train.state import param_shardings, sample_sharding
from experiments.cpu_step.timing import OtherCores, median_ms
from experiments.dense_parallel.pipeline import Pipeline

FOLDER = Path(__file__).parent
WIDTHS = {"DLRM's top": (512, 1024, 1024, 512, 256), "8 × 1024": (1024,) * 9}
"""Widths of input and layers; all layers end in ReLU."""
BATCHES = (256, 2048)
DEVICES = (2, 4)
MICRO_BATCHES = 4
RATE = 0.01
FLOAT_BYTES = 4
STEPS = 4
"""Steps that are timed together."""
COLLECTIVE = re.compile(r" = (.+?) (all-to-all|all-reduce|all-gather)\(")
FLOATS = re.compile(r"\bf32\[([\d,]*)\]")
"""Dimensions of an array."""

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


def products(
    kind: str, widths: Sequence[int], batch: int, devices: int
) -> Iterator[tuple[int, int, int]]:
    """Rows, inner and columns of a device's matrix products, forward; with a pipeline
    those of its busier stage."""
    layers = list(itertools.pairwise(widths))
    if kind == "pipeline":
        samples = batch // (devices // 2)
        stages = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        busier = max(stages, key=lambda stage: sum(a * b for a, b in stage))
        yield from ((samples, inputs, outputs) for inputs, outputs in busier)
        return
    for i, (inputs, outputs) in enumerate(layers):
        if kind == "replicated":
            yield batch // devices, inputs, outputs
        elif i % 2:
            yield batch, inputs // devices, outputs
        else:
            yield batch, inputs, outputs // devices


def operator_ms(shapes: Sequence[tuple[int, int, int]]) -> float:
    """Time of products and of their two gradients, alone on one device."""
    total_ms = 0.0
    product = jax.jit(jnp.matmul)
    for rows, inner, columns in shapes:
        for left, right in (
            ((rows, inner), (inner, columns)),
            ((inner, rows), (rows, columns)),
            ((rows, columns), (columns, inner)),
        ):
            operands = jnp.ones(left), jnp.ones(right)
            total_ms += median_ms(
                lambda both: product(*both), [operands] * STEPS, jax.block_until_ready
            )
    return total_ms


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


def measure_pipeline(
    widths: Sequence[int], batch: int, devices: int
) -> dict[str, float]:
    pipeline = Pipeline(layers_of(widths), jax.devices()[:devices], MICRO_BATCHES, RATE)
    x, y = clicks(widths, batch)
    micro = pipeline.split(x, y)

    def run(_):
        return pipeline.step(micro)

    run(0)
    return {
        "step_ms": median_ms(run, range(STEPS), jax.block_until_ready),
        "sent_mb": pipeline.sent_bytes / 1e6,
        "collectives": 2 * MICRO_BATCHES + (devices > 2),
        "memory_mb": pipeline.memory_bytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    batches = parser.parse_args().batches
    others = OtherCores()
    rows = []
    print(
        "| layers | batch | devices | kind | step, ms | operators | sent, MB ", end=""
    )
    print("| messages | memory, MB |\n" + 9 * "|---" + "|")
    for name, widths in WIDTHS.items():
        for batch in batches:
            for devices in DEVICES:
                for kind in ("replicated", "tensor", "pipeline"):
                    if kind == "pipeline":
                        row = measure_pipeline(widths, batch, devices)
                    else:
                        row = measure_program(kind, widths, batch, devices)
                    shapes = list(products(kind, widths, batch, devices))
                    row["operator_ms"] = operator_ms(shapes)
                    case = {"layers": name, "batch": batch, "devices": devices}
                    rows.append(case | {"kind": kind} | row)
                    print(
                        f"| {name} | {batch:,} | {devices} | {kind} "
                        f"| {row['step_ms']:.1f} | {row['operator_ms']:.1f} "
                        f"| {row['sent_mb']:.1f} | {row['collectives']:.0f} "
                        f"| {row['memory_mb']:.1f} |",
                        flush=True,
                    )
    record = {"cores": os.cpu_count(), "other_cores": others.read(), "cases": rows}
    (FOLDER / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nother processes kept {record['other_cores']} cores busy")


if __name__ == "__main__":
    main()
