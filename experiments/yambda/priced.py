"""Counts what DLRMv4's dense layers compute, and what the compiled ones move; prints
how long a step of each case in compiled.json lasts, at least and at most.

    python -m experiments.yambda.priced
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from embark_jax import models
from embark_jax.config.models import DLRMv4Config
from embark_jax.models.function import split
from embark_jax.plans import fleet
from experiments.step_bytes.audit import phase_of
from experiments.step_bytes.hlo import Program
from experiments.yambda.run import FLOPS_A_SAMPLE

DENSE_FEATURES = 4
FLEETS = {
    machines.device.name: machines
    for machines in map(fleet.load, ("dgx-h200", "dgx-h100"))
}
"""By the names of their devices."""
COMPILED = Path(__file__).parent / "compiled.json"


class Step(NamedTuple):
    """Milliseconds of a step's parts, on every device.

    Attributes:
      embeddings: by the plan's cost model.
      products: of the dense layers, if all else were free.
      memory: of what the dense layers move, if products were free.
    """

    embeddings: float
    products: float
    memory: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most: where products run beside what moves, and not."""
        least = self.embeddings + max(self.products, self.memory)
        return least, self.embeddings + self.products + self.memory


def step_of(case: Mapping[str, Any]) -> Step:
    """Prices a case of compiled.json by the shares of its fleet's figures that
    ``configs/fleets`` assumes."""
    machines = FLEETS[case["device"]]
    device, efficiency = machines.device, machines.efficiency
    return Step(
        case["embedding_ms"],
        1e3 * case["dense_flops"] / (device.flops_per_s * efficiency.flops),
        1e3 * case["dense_bytes"] / (device.memory_bytes_per_s * efficiency.memory),
    )


def row(case: Mapping[str, Any]) -> str:
    """Returns a row of the README's table."""
    step = step_of(case)
    rates = [1e3 * case["samples"] / ms for ms in step.bounds]
    peak = FLEETS[case["device"]].device.flops_per_s
    cells = [
        f"{case['devices']} {case['device']}",
        *(f"{ms:,.0f}" for ms in (*step, *step.bounds)),
        *(f"{100 * FLOPS_A_SAMPLE * rate / peak:.1f} %" for rate in rates),
        *(f"{rate * case['devices']:,.0f}" for rate in rates),
    ]
    return f"| {' | '.join(cells)} |"


def dense_flops(
    config: DLRMv4Config, shapes: Mapping[str, tuple[int, ...]], samples: int
) -> float:
    """Returns operations a sample of all matrix products, forward and backward, those
    that are computed twice to save memory included.

    Args:
      config: the model.
      shapes: shape of each feature's embedding.
      samples: number of samples that go through at once.
    """
    config = config.model_copy(update={"samples_at_once": samples})
    model = nnx.eval_shape(
        lambda: models.build(config, shapes, DENSE_FEATURES, nnx.Rngs(0))
    )
    params, state, apply = split(model)

    def floats(*shape: int) -> Any:
        return jax.ShapeDtypeStruct((2 * samples, *shape), jnp.float32)

    def loss(params, embeddings, state, dense):
        return jnp.sum(apply(params, state, dense, embeddings))

    embeddings = {name: floats(*shape) for name, shape in shapes.items()}
    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(
        params, embeddings, state, floats(DENSE_FEATURES)
    )
    return sum(_products(program.jaxpr)) / (2 * samples)


def _products(jaxpr: core.Jaxpr, turns: int = 1) -> Iterator[float]:
    """Yields the operations of each matrix product, over all turns of its loops."""
    for line in jaxpr.eqns:
        if line.primitive.name == "dot_general":
            (contracted, _), _ = line.params["dimension_numbers"]
            operand: Any = line.invars[0].aval
            result: Any = line.outvars[0].aval
            inner = math.prod(operand.shape[axis] for axis in contracted)
            yield 2.0 * turns * inner * math.prod(result.shape)
        inside = turns * line.params.get("length", 1)
        for called in jax.tree.leaves(
            list(line.params.values()),
            is_leaf=lambda leaf: isinstance(leaf, core.Jaxpr | core.ClosedJaxpr),
        ):
            if isinstance(called, core.ClosedJaxpr):
                called = called.jaxpr
            if isinstance(called, core.Jaxpr):
                yield from _products(called, inside)


def dense_bytes(hlo: str) -> float:
    """Returns what the dense layers of a compiled step read and write in memory."""
    moved = Program(hlo).moved()
    return sum(part.bytes for part in moved if phase_of(part.purpose) == "dense")


if __name__ == "__main__":
    for case in json.loads(COMPILED.read_text()):
        print(row(case))
