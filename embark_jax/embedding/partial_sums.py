"""Partial sums: what adds up to an output, and who owns it.

A device's *partial sum* is what it pools for one (output, row shard). In a hierarchical
exchange the devices of a node add up their partial sums of an output before they
travel: the result is a partial sum of the node.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class PartialSums:
    """The partial sums of all owners, which are devices or nodes.

    Attributes:
      output: ``[sums]`` output to which each sum belongs, ascending.
      owner: ``[sums]`` owner of each sum.
      rank: ``[sums]`` index of each among its owner's sums.
      outputs_of_owner: ``[owners, ranks]`` output of each rank; ``outputs`` where an
        owner has fewer sums than the fullest.
      outputs: number of outputs.
    """

    output: np.ndarray
    owner: np.ndarray
    rank: np.ndarray
    outputs_of_owner: np.ndarray
    outputs: int

    @property
    def ranks(self) -> int:
        """Sums of the owner that holds the most."""
        return self.outputs_of_owner.shape[1]

    @property
    def one_an_output(self) -> bool:
        """Whether no owner holds two sums of an output."""
        pairs = self.output.astype(np.int64) * len(self.outputs_of_owner) + self.owner
        return len(np.unique(pairs)) == len(pairs)

    def reduce(self, received: jax.Array) -> jax.Array:
        """Adds ``[owners, batch, ranks, width]`` up to ``[batch, outputs, width]``.

        Outputs with the same number of sums are added up together, so that the program
        grows with the distinct counts of a plan, not with its tables.
        """
        counts = np.bincount(self.output, minlength=self.outputs)
        first = np.cumsum(counts) - counts
        order, sums = [], []
        for count in np.unique(counts):
            outputs = np.flatnonzero(counts == count)
            sum_ = first[outputs][:, None] + np.arange(count)
            terms = received[self.owner[sum_], :, self.rank[sum_]]
            order.append(outputs)
            sums.append(terms.sum(axis=1))  # [outputs, batch, width]
        joined = jnp.concatenate(sums)[np.argsort(np.concatenate(order))]
        return joined.transpose(1, 0, 2)

    def scatter(self, gradients: jax.Array) -> jax.Array:
        """Turns gradients ``[batch, outputs, width]`` into those of all sums,
        ``[owners, batch, ranks, width]``; the opposite direction of ``reduce``."""
        outputs_of_owner = jnp.asarray(self.outputs_of_owner)
        by_output = gradients.transpose(1, 0, 2)
        of_sums = by_output.at[outputs_of_owner].get(mode="fill", fill_value=0)
        return of_sums.transpose(0, 2, 1, 3)


def number_sums(
    output: np.ndarray, owner: np.ndarray, owners: int, outputs: int
) -> PartialSums:
    """Gives the sums of each owner their ranks, in the order of outputs."""
    rank = np.zeros_like(owner)
    outputs_of_owner: list[list[int]] = [[] for _ in range(owners)]
    for i, (of_output, by) in enumerate(zip(output, owner, strict=True)):
        rank[i] = len(outputs_of_owner[by])
        outputs_of_owner[by].append(of_output)
    ranks = max(map(len, outputs_of_owner))
    padded = [sums + [outputs] * (ranks - len(sums)) for sums in outputs_of_owner]
    return PartialSums(output, owner, rank, np.array(padded, np.int32), outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Merging:
    """The way in which partial sums of a node's devices become those of the node.

    Attributes:
      partial_sums: partial sums of the nodes.
      node_rank: ``[nodes, gpus, device ranks]`` rank in its node of the sum to which a
        device's sum is added; one past the last where a device has fewer.
      terms: ``[nodes, node ranks, terms]`` sums that are added up there, each as
        ``gpu * device ranks + rank``; ``gpus * device ranks`` where there are fewer.
    """

    partial_sums: PartialSums
    node_rank: np.ndarray
    terms: np.ndarray


def merge_in_nodes(partial_sums: PartialSums, gpus_per_node: int) -> Merging:
    """Merges sums of devices into those of nodes with ``gpus_per_node`` GPUs."""
    nodes = len(partial_sums.outputs_of_owner) // gpus_per_node
    node, gpu = np.divmod(partial_sums.owner, gpus_per_node)
    pairs = partial_sums.output.astype(np.int64) * nodes + node
    different, merged = np.unique(pairs, return_inverse=True)
    output, owner = np.divmod(different, nodes)
    of_nodes = number_sums(output, owner, nodes, partial_sums.outputs)
    shape = (nodes, gpus_per_node, partial_sums.ranks)
    node_rank = np.full(shape, of_nodes.ranks, np.int32)
    node_rank[node, gpu, partial_sums.rank] = of_nodes.rank[merged]

    max_terms = int(np.bincount(merged).max())
    none = gpus_per_node * partial_sums.ranks
    terms = np.full((nodes, of_nodes.ranks, max_terms), none, np.int32)
    taken = np.zeros(len(different), int)
    for i, into in enumerate(merged):
        source = gpu[i] * partial_sums.ranks + partial_sums.rank[i]
        terms[owner[into], of_nodes.rank[into], taken[into]] = source
        taken[into] += 1
    return Merging(of_nodes, node_rank, terms)
