"""A minimal vertical pipeline: layers in two stages, micro-batches one after another.

Each stage has programs of its own on half of the devices, over which samples are
spread. All micro-batches go forward before their gradients come back, and the first
stage computes its activations again for these (GPipe,
https://arxiv.org/abs/1811.06965). JAX starts programs without waiting, so that the
stages work at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from embark_jax.models.layers import MLP


class Pipeline:
    """Layers in two stages that are trained by plain gradient descent.

    Attributes:
      sent_bytes: bytes that the busiest device sends in a step.
      memory_bytes: bytes of parameters, gradients, kept activations and temporaries on
        the fullest device in a step.
    """

    def __init__(
        self,
        layers: MLP,
        devices: Sequence[Any],
        micro_batches: int,
        rate: float,
    ):
        """
        Args:
          layers: all layers, each ending in ReLU.
          devices: the first half is the first stage.
          micro_batches: number of parts of a batch.
          rate: learning rate.
        """
        self._copies = copies = len(devices) // 2
        groups = devices[:copies], devices[copies:]
        # Arrays have a first axis, of the devices of a stage: each has a copy of the
        # parameters, and gradients of its own samples until the update adds them up.
        self._shardings = [
            NamedSharding(Mesh(np.array(group), ("gpu",)), PartitionSpec("gpu"))
            for group in groups
        ]
        arrays = [(linear.w[...], linear.b[...]) for linear in layers.layers]
        middle = len(arrays) // 2
        stages = arrays[:middle], arrays[middle:]
        self.params = [
            jax.device_put(
                jax.tree.map(lambda a: jnp.stack([a] * copies), stage), sharding
            )
            for stage, sharding in zip(stages, self._shardings, strict=True)
        ]
        self._micro_batches = micro_batches
        self.sent_bytes = self.memory_bytes = 0

        def updated(parameter, gradient):
            mean = gradient.mean(axis=0, keepdims=True) / micro_batches
            return parameter - rate * mean

        self._forward = jax.jit(_apply)
        self._backward = jax.jit(
            lambda params, x, gradient: jax.vjp(_apply, params, x)[1](gradient)[0]
        )
        self._last = jax.jit(jax.value_and_grad(_loss, argnums=(0, 1)))
        self._add = jax.jit(partial(jax.tree.map, jnp.add), donate_argnums=0)
        self._update = jax.jit(partial(jax.tree.map, updated), donate_argnums=0)

    def split(self, x: np.ndarray, y: np.ndarray) -> list[tuple[jax.Array, jax.Array]]:
        """Returns inputs and targets of micro-batches, where their stages need them."""
        shape = self._micro_batches, self._copies, -1
        parts = zip(
            x.reshape(*shape, x.shape[1]), y.reshape(*shape, y.shape[1]), strict=True
        )
        first, last = self._shardings
        return [(jax.device_put(a, first), jax.device_put(b, last)) for a, b in parts]

    def step(self, batch: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
        """Trains on the micro-batches of a batch and returns its loss."""
        first, last = self._shardings
        between = [
            jax.device_put(self._forward(self.params[0], x), last) for x, _ in batch
        ]
        losses, gradients = [], [None, None]
        for (x, y), hidden in zip(batch, between, strict=True):
            loss, (of_params, of_hidden) = self._last(self.params[1], hidden, y)
            back = jax.device_put(of_hidden, first)
            of_first = self._backward(self.params[0], x, back)
            gradients[0] = self._sum(gradients[0], of_first)
            gradients[1] = self._sum(gradients[1], of_params)
            losses.append(loss)
        if not self.sent_bytes:
            self._count(between, batch)
        self.params = [
            self._update(params, gradient)
            for params, gradient in zip(self.params, gradients, strict=True)
        ]
        return sum(losses[1:], start=losses[0]) / len(losses) / self._copies

    def _sum(self, total: Any, more: Any) -> Any:
        return more if total is None else self._add(total, more)

    def _count(self, between, batch) -> None:
        """Counts bytes: activations travel one way, their gradients back; stages of
        several devices sum gradients in a ring."""
        crossing = _device_bytes(between)
        stages = [_device_bytes(params) for params in self.params]
        ring = 2 * (self._copies - 1) / self._copies
        self.sent_bytes = crossing + ring * max(stages)
        inputs, targets = zip(*batch, strict=True)
        gradient = jax.device_put(between[0], self._shardings[0])
        programs = (
            self._backward.lower(self.params[0], inputs[0], gradient),
            self._last.lower(self.params[1], between[0], targets[0]),
        )
        # Parameters, gradients, what arrived, and temporaries of one micro-batch.
        self.memory_bytes = max(
            2 * stage + _device_bytes(arrived) + temporary_bytes(program.compile())
            for stage, arrived, program in zip(
                stages, (inputs, (between, targets)), programs, strict=True
            )
        )


def temporary_bytes(program: Any) -> int:
    """Bytes of a compiled program's temporaries on a device."""
    return program.memory_analysis().temp_size_in_bytes


@jax.vmap
def _apply(params: Any, x: jax.Array) -> jax.Array:
    for w, b in params:
        x = nnx.relu(x @ w + b[None])
    return x


def _loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The sum over devices of the mean loss of their samples."""
    return ((_apply(params, x) - y) ** 2).mean(axis=(1, 2)).sum()


def _device_bytes(arrays: Any) -> int:
    """Bytes of different arrays on the first device."""
    blocks = [leaf.addressable_shards[0].data for leaf in jax.tree.leaves(arrays)]
    different = {block.unsafe_buffer_pointer(): block for block in blocks}
    return sum(block.nbytes for block in different.values())
