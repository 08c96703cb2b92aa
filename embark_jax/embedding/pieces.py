"""Pieces: what an output is summed from, and who holds it.

A *piece* of a device is what it pools for one (output, row shard). In a hierarchical
exchange the devices of a node add up their pieces of an output before they travel: what
comes out is a piece of the node.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of all owners, which are devices or nodes.

    Attributes:
      output: ``[pieces]`` that a piece is part of, ascending.
      owner: ``[pieces]``.
      place: ``[pieces]`` index of a piece among its owner's.
      held: ``[owners, places]`` output of each place; ``outputs`` where an owner has
        fewer pieces than the fullest.
      outputs: how many there are.
    """

    output: np.ndarray
    owner: np.ndarray
    place: np.ndarray
    held: np.ndarray
    outputs: int

    @property
    def places(self) -> int:
        """Pieces of the owner that holds the most."""
        return self.held.shape[1]

    @property
    def one_an_output(self) -> bool:
        """Whether no owner holds two pieces of an output."""
        pairs = self.output.astype(np.int64) * len(self.held) + self.owner
        return len(np.unique(pairs)) == len(pairs)

    def add_up(self, received: jax.Array) -> jax.Array:
        """Pieces ``[owners, batch, places, width]`` to ``[batch, outputs, width]``.

        Outputs with equally many pieces are summed together, so that the program grows
        with the different counts of a plan, not with its tables.
        """
        counts = np.bincount(self.output, minlength=self.outputs)
        first = np.cumsum(counts) - counts
        order, sums = [], []
        for count in np.unique(counts):
            outputs = np.flatnonzero(counts == count)
            piece = first[outputs][:, None] + np.arange(count)
            parts = received[self.owner[piece], :, self.place[piece]]
            order.append(outputs)
            sums.append(parts.sum(axis=1))  # [outputs, batch, width]
        joined = jnp.concatenate(sums)[np.argsort(np.concatenate(order))]
        return joined.transpose(1, 0, 2)

    def hand_out(self, gradients: jax.Array) -> jax.Array:
        """Gradients ``[batch, outputs, width]`` to those of all pieces, ``[owners,
        batch, places, width]``; the inverse direction of ``add_up``."""
        held = jnp.asarray(self.held)
        by_output = gradients.transpose(1, 0, 2)
        of_pieces = by_output.at[held].get(mode="fill", fill_value=0)
        return of_pieces.transpose(0, 2, 1, 3)


def number_pieces(
    output: np.ndarray, owner: np.ndarray, owners: int, outputs: int
) -> Pieces:
    """Gives the pieces of each owner their places, in the order of outputs."""
    place = np.zeros_like(owner)
    held: list[list[int]] = [[] for _ in range(owners)]
    for piece, (of_output, by) in enumerate(zip(output, owner, strict=True)):
        place[piece] = len(held[by])
        held[by].append(of_output)
    places = max(map(len, held))
    padded = [each + [outputs] * (places - len(each)) for each in held]
    return Pieces(output, owner, place, np.array(padded, np.int32), outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Merging:
    """How the pieces of the devices of a node become pieces of the node.

    Attributes:
      pieces: of the nodes.
      place: ``[nodes, gpus, device places]`` place in its node that a device's piece is
        added to; one too many where a device has fewer pieces.
      parts: ``[nodes, node places, parts]`` what is added up there: ``gpu * device
        places + place``, and ``gpus * device places`` where there are fewer parts.
    """

    pieces: Pieces
    place: np.ndarray
    parts: np.ndarray


def merge_in_nodes(pieces: Pieces, gpus_per_node: int) -> Merging:
    """The pieces of nodes, each of so many of the devices that own ``pieces``."""
    nodes = len(pieces.held) // gpus_per_node
    node, gpu = np.divmod(pieces.owner, gpus_per_node)
    pairs = pieces.output.astype(np.int64) * nodes + node
    different, merged = np.unique(pairs, return_inverse=True)
    output, owner = np.divmod(different, nodes)
    of_nodes = number_pieces(output, owner, nodes, pieces.outputs)
    shape = (nodes, gpus_per_node, pieces.places)
    place = np.full(shape, of_nodes.places, np.int32)
    place[node, gpu, pieces.place] = of_nodes.place[merged]

    most = int(np.bincount(merged).max())
    none = gpus_per_node * pieces.places
    parts = np.full((nodes, of_nodes.places, most), none, np.int32)
    taken = np.zeros(len(different), int)
    for piece, into in enumerate(merged):
        source = gpu[piece] * pieces.places + pieces.place[piece]
        parts[owner[into], of_nodes.place[into], taken[into]] = source
        taken[into] += 1
    return Merging(of_nodes, place, parts)
