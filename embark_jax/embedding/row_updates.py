"""Turns gradients of a storage's lookup result into updated rows, on one device.

Rows of a 16-bit storage are updated in float32 and rounded stochastically as they are
written. Where they are cached, the route says which rows lie in the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import (
    RowOptimizer,
    changes_are_finite,
    sum_and_update,
    update_rows,
)
from embark_kernels.optimizers import STAY_FINITE
from embark_kernels.rounding import column_noise

from embark_jax.embedding.cluster import Cluster, Route, RowGradients
from embark_jax.embedding.initial import locate, row_rng
from embark_jax.plans.layout import Storage


class RowSums(NamedTuple):
    """What a rule is given of a storage's rows, on one device.

    Attributes:
      rows: the summed gradients.
      mean_square: ``[rows]`` mean of gradient² over whole rows, where a rule takes that
        of columns which lie elsewhere.
    """

    rows: RowGradients
    mean_square: jax.Array | None


def may_spoil(optimizer: RowOptimizer, dtype: jax.typing.DTypeLike) -> bool:
    """Whether a rule may make rows of this format infinite or NaN from gradients that a
    step applies: one of a user's own, and any in float16, whose largest is 65,504."""
    return type(optimizer) not in STAY_FINITE or dtype == jnp.float16


def sum_rows(
    cluster: Cluster,
    route: Route,
    gradients: list[jax.Array],
    optimizer: RowOptimizer,
) -> RowSums:
    """Returns the sums of a storage's gradients; arguments as in ``update_block``."""
    rows = cluster.row_gradients(gradients, route)
    mean_square = cluster.mean_square(rows, route) if optimizer.row_wise else None
    return RowSums(rows, mean_square)


def stays_finite(
    block: jax.Array,
    state: Mapping[str, jax.Array],
    sums: RowSums,
    optimizer: RowOptimizer,
    step: jax.Array,
) -> jax.Array:
    """Returns ``[]`` bool: whether all that ``update_block`` would write is finite."""
    return changes_are_finite(
        block,
        dict(state),
        sums.rows.slot,
        sums.rows.gradient,
        optimizer,
        step=step,
        mean_square=sums.mean_square,
    )


def update_block(
    cluster: Cluster,
    block: jax.Array,
    state: Mapping[str, jax.Array],
    route: Route,
    gradients: list[jax.Array],
    optimizer: RowOptimizer,
    step: jax.Array,
    apply: jax.Array,
    sums: RowSums | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Updates the touched rows of a storage; arguments are those of the collection's
    ``update``, for this storage, and gradients for each block of its index ``[rows,
    outputs, width]``; ``sums`` are those of the gradients, if they are made already."""
    noise_of_slots = None
    if block.dtype != jnp.float32:
        noise_of_slots = noise_of(cluster.index.storage, step)
    keys = route.row_keys if cluster.index.storage.cached else None
    whole_rows = not (optimizer.row_wise and cluster.index.storage.kind.split)
    if sums is None and whole_rows and cluster.sums_alone:
        terms = cluster.gradient_terms(gradients, route)
        return sum_and_update(
            block,
            dict(state),
            terms.groups,
            terms.values,
            terms.source,
            optimizer,
            terms.weight,
            apply=apply,
            step=step,
            noise=noise_of_slots and noise_of_slots(terms.groups.row, keys),
            implementation=cluster.implementation,
        )
    rows, mean_square = sums or sum_rows(cluster, route, gradients, optimizer)
    return update_rows(
        block,
        dict(state),
        jnp.where(apply, rows.slot, -1),
        rows.gradient,
        optimizer,
        step=step,
        mean_square=mean_square,
        noise=noise_of_slots and noise_of_slots(rows.slot, keys),
        implementation=cluster.implementation,
    )


def noise_of(
    storage: Storage, step: jax.Array
) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
    """Returns a function that gives the uint32 noise ``[n]`` of rows, inside
    ``shard_map``, from their slots in this device's block, ``[n]`` int32; or of a
    cached storage, from their keys, ``[n, words]``.

    The random bits that follow depend on the table, row and column and on the step,
    never on plan or mesh, and not on the seed of the run: its rows and batches do.

    Args:
      storage: the storage.
      step: ``[]`` int32 number of the step.
    """
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), step)

    def of_row(row_low, row_high, seed):
        return jax.random.key_data(row_rng(key, row_low, row_high, seed))[0]

    def noise(slots, keys):
        row = locate(storage, slots if keys is None else keys)
        return jax.vmap(of_row)(row.low, row.high, row.seed) + column_noise(row.column)

    return noise
