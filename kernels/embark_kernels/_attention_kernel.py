"""The Mosaic GPU kernels of causal attention over packed samples, for Hopper.

One driver, ``_run``, makes all three. A warpgroup holds a tile of *rows* in shared
memory and goes through blocks of *columns*, which a warpgroup of its own brings there
ahead of time. Each row has a *span*, the consecutive columns that it forms pairs with:

| kernel             | rows    | columns | span of a row                        |
|--------------------|---------|---------|--------------------------------------|
| sums of values     | queries | keys    | from its sample's first event to it  |
| gradient of queries| queries | keys    | the same                             |
| gradients of keys  | keys    | queries | from it to its sample's last event   |
| and values         |         |         |                                      |

A tile reads the blocks from the first column of any of its spans to the last, and no
others: none of another sample than its own, none of the future. Inside a block, a mask
hides what is outside a row's span. Products take bfloat16 and add up in float32.
Nothing is added by an atomic, so that results repeat bit for bit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from embark_kernels import _mosaic
from embark_kernels._mosaic import launch_options, moves
from embark_kernels.attention import Heads

ROWS = 64
"""Rows of a warpgroup: as many as one product of tensor cores has."""
COMPUTING = 2
"""Warpgroups of a block that compute, each with a tile of its own; another loads."""
TILE_ROWS = COMPUTING * ROWS
COLUMNS, GRADIENT_COLUMNS = 128, 64
"""Columns of a block, forward and backward, where sums and scores fit in registers."""
STAGES = 2
"""Blocks of columns in shared memory at a time."""
LOADING_REGISTERS = 24
AXES = "head", "tile", "warpgroup"
LAYOUT = plgpu.Layout.WGMMA
HIDDEN, LOWEST = -1e30, -1e29
"""Score of a pair that is not in a span, and the least largest score of a row: the
first is no share of the second, so that a row without columns has none."""
LOG2_E = math.log2(math.e)

_plgpu: Any = plgpu  # which does not say what types its functions take
State = Any
"""What a tile carries from block to block, in registers."""
Hide = Callable[..., jax.Array]
"""Puts 0, or the number that is given, in place of the values of pairs that are not in
a span."""


class Spans(NamedTuple):
    """Columns of rows.

    Attributes:
      begin: ``[events]`` int32 first column of each row.
      count: ``[events]`` int32 number of its columns; 0 after the last event.
    """

    begin: jax.Array
    count: jax.Array


@dataclasses.dataclass(frozen=True)
class SiLU:
    """Shares are SiLU of scores over a divisor.

    Attributes:
      score_scale: factor of a product of query and key.
      divisor: of shares.
    """

    score_scale: float
    divisor: int

    offsets = 0
    """How many numbers of a query are added to products for the gradient: none, or one
    to those with keys and one to those of gradients with values."""

    @property
    def share_factor(self) -> float:
        """Factor of sums of shares, which is left out of each share."""
        return 1 / self.divisor

    def start(self) -> State:
        return ()

    def shares(self, product: jax.Array, hide: Hide, state: State):
        """Returns shares, by what earlier sums are to be multiplied (None for 1), and
        the new state."""
        half = product * (0.5 * self.score_scale)  # SiLU(2 h) = h (1 + tanh h)
        return hide(half * jnp.tanh(half) + half), None, state

    def finish(self, total: jax.Array, state: State):
        """Returns the sums of values, and vectors to keep for the gradient."""
        return total * self.share_factor, ()

    def gradients(self, product: jax.Array, share_gradient: jax.Array):
        """Returns shares, and the gradients of products but for a factor."""
        half = product * (0.5 * self.score_scale)
        sigmoid = 0.5 * jnp.tanh(half) + 0.5
        share = (half + half) * sigmoid
        slope = sigmoid + share * (1.0 - sigmoid)
        return share, share_gradient * slope


@dataclasses.dataclass(frozen=True)
class Softmax:
    """Shares are softmax of scores, whose largest and sum are carried from block to
    block (https://arxiv.org/abs/2205.14135). Exponentials are to base 2.

    Attributes:
      score_scale: factor of a product of query and key.
    """

    score_scale: float

    offsets = 2
    share_factor = 1.0

    def start(self) -> State:
        return _full((ROWS,), LOWEST), _full((ROWS,), 0.0)

    def shares(self, product: jax.Array, hide: Hide, state: State):
        before, whole = state
        score = hide(product * (self.score_scale * LOG2_E), HIDDEN)
        largest = jnp.maximum(before, score.max(axis=1))
        share = jnp.exp2(score - _spread(largest, score.shape, 0))
        shrunk = jnp.exp2(before - largest)
        return share, shrunk, (largest, whole * shrunk + share.sum(axis=1))

    def finish(self, total: jax.Array, state: State):
        largest, whole = state
        whole = jnp.where(whole > 0.0, whole, 1.0)
        total = total / _spread(whole, total.shape, 0)
        log_sum = largest + jnp.log(whole) * LOG2_E
        return total, (log_sum * (-1 / (self.score_scale * LOG2_E)),)

    def gradients(self, product: jax.Array, share_gradient: jax.Array):
        share = jnp.exp2(product * (self.score_scale * LOG2_E))
        return share, share * share_gradient


Rule = SiLU | Softmax


def attend_mosaic_gpu(
    query: Heads,
    key: Heads,
    value: Heads,
    first_of: jax.Array,
    end_of: jax.Array,
    rule: Rule,
) -> jax.Array:
    """Returns each event's sum of values, as ``attention.attend_packed`` does.

    Args:
      query, key, value: bfloat16, finite also after the last event: what a mask hides
        is multiplied by 0.
      first_of, end_of: ``[events]`` int32 first event of each event's sample, and the
        one after its last; after the last sample of all both are 0.
      rule: what makes shares of scores.
    """
    events = len(query.array)
    padding = -events % max(TILE_ROWS, COLUMNS)

    def pad(array: jax.Array) -> jax.Array:
        return jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))

    event = jnp.arange(events, dtype=jnp.int32)
    keys = Spans(first_of, jnp.where(end_of > 0, event + 1 - first_of, 0))
    queries = Spans(event, jnp.where(end_of > 0, end_of - event, 0))
    given = query, key, value, keys, queries
    query, key, value, keys, queries = jax.tree.map(pad, given)
    return _attend(query, key, value, keys, queries, rule)[:events]


def _attend_forward(
    query: Heads, key: Heads, value: Heads, keys: Spans, queries: Spans, rule: Rule
):
    total, *vectors = _run(
        "attention_sums",
        _Sums(rule, query.shape[-1]),
        rows=[query],
        columns=[key, value],
        spans=keys,
        block_columns=COLUMNS,
        row_vectors_out=rule.offsets // 2,
    )
    kept_sums = total if rule.offsets else None
    return total, (query, key, value, keys, queries, kept_sums, vectors)


def _attend_backward(rule: Rule, kept, gradient: jax.Array):
    query, key, value, keys, queries, total, vectors = kept
    gradient = gradient.astype(query.dtype)
    if rule.offsets:  # the mean of the gradients of shares, weighed by shares
        product = total.astype(jnp.float32) * gradient.astype(jnp.float32)
        vectors = [*vectors, -product.sum(axis=-1).T]
    *_, dim = query.shape
    gradients = Heads.all_of(gradient)
    (query_gradient,) = _run(
        "attention_query_gradient",
        _Gradients(rule, dim, sums=1),
        rows=[query, gradients],
        columns=[key, value],
        spans=keys,
        block_columns=GRADIENT_COLUMNS,
        row_vectors=vectors,
    )
    key_gradient, value_gradient = _run(
        "attention_key_gradient",
        _Gradients(rule, dim, sums=2),
        rows=[key, value],
        columns=[query, gradients],
        spans=queries,
        block_columns=GRADIENT_COLUMNS,
        column_vectors=vectors,
    )
    pairs = (query, query_gradient), (key, key_gradient), (value, value_gradient)
    return *(_among_others(*pair) for pair in pairs), None, None


def _among_others(heads: Heads, gradient: jax.Array) -> Heads:
    """Returns the gradient by some heads as one by their array, in which it is added to
    those by others."""
    after = heads.array.shape[1] - heads.first - heads.count
    padded = jnp.pad(gradient, ((0, 0), (heads.first, after), (0, 0)))
    return dataclasses.replace(heads, array=padded)


def _attend_alone(query, key, value, keys, queries, rule) -> jax.Array:
    return _attend_forward(query, key, value, keys, queries, rule)[0]


_attend = jax.custom_vjp(_attend_alone, nondiff_argnums=(5,))
_attend.defvjp(_attend_forward, _attend_backward)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Adds up values: rows are queries, columns keys and values."""

    rule: Rule
    dim: int

    def start(self) -> State:
        return _full((ROWS, self.dim), 0.0), self.rule.start()

    def step(self, rows, columns, hide: Hide, offsets, state: State) -> State:
        (total, state), (key, value) = state, columns
        (product,) = _products(rows, [key])
        share, shrunk, state = self.rule.shares(product, hide, state)
        if shrunk is not None:
            total = total * _spread(shrunk, total.shape, 0)
        (total,) = _add_products([total], [share], [value])
        return total, state

    def finish(self, state: State):
        """Returns matrices, which replace the rows, and vectors."""
        total, vectors = self.rule.finish(*state)
        return (total,), vectors


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """Adds up gradients of queries (one sum) or of keys and values (two): rows are
    queries and gradients of sums and columns keys and values, or the reverse."""

    rule: Rule
    dim: int
    sums: int

    def start(self) -> State:
        return tuple(_full((ROWS, self.dim), 0.0) for _ in range(self.sums))

    def step(self, rows, columns, hide: Hide, offsets, state: State) -> State:
        product, share_gradient = _products(rows, columns, offsets)
        share, product_gradient = self.rule.gradients(product, share_gradient)
        factors = [hide(each) for each in (product_gradient, share)[: self.sums]]
        return _add_products(state, factors, columns[: self.sums])

    def finish(self, state: State):
        """Returns matrices, which replace the rows, and vectors."""
        share_factor = self.rule.share_factor
        factors = self.rule.score_scale * share_factor, share_factor
        return tuple(s * f for s, f in zip(state, factors, strict=False)), ()


def _run(
    name: str,
    task: _Sums | _Gradients,
    *,
    rows: list[Heads],
    columns: list[Heads],
    spans: Spans,
    block_columns: int,
    row_vectors: Sequence[jax.Array] = (),
    column_vectors: Sequence[jax.Array] = (),
    row_vectors_out: int = 0,
) -> list[jax.Array]:
    """Runs one kernel: for each tile ``start``, for each of its blocks of columns
    ``step``, then ``finish``.

    Args:
      rows, columns: events are a multiple of a tile's rows and of a block's columns.
      row_vectors, column_vectors: ``[heads, events]`` float32 numbers that the task
        needs of each row, or of each column.
      row_vectors_out: number of such vectors that it returns.
    """
    (events, heads, dim), dtype = rows[0].shape, rows[0].dtype
    matrix = jax.ShapeDtypeStruct(rows[0].shape, dtype)
    vector = jax.ShapeDtypeStruct((heads, events), jnp.float32)
    sums = task.sums if isinstance(task, _Gradients) else 1
    out_type = [matrix] * sums + [vector] * row_vectors_out
    low, steps = _blocks_of_tiles(spans, block_columns)
    arrays = [rows, columns, list(row_vectors), list(column_vectors), [*spans]]
    operands = [*arrays, [low, steps], out_type]
    item_bytes = dtype.itemsize
    together = math.gcd(dim, 128 // item_bytes)
    swizzle = plgpu.SwizzleTransform(together * item_bytes)
    tiled = plgpu.TilingTransform((8, together)), swizzle

    def kernel(*refs):
        *refs, held, held_vectors, arrived = refs
        refs = jax.tree.unflatten(jax.tree.structure(operands), refs)
        rows, columns, *vector_refs, span_refs, blocks, out_refs = refs
        head, tile, group = (lax.axis_index(axis) for axis in AXES)
        low, steps = (ref[tile] for ref in blocks)
        own = pl.ds((tile * COMPUTING + group) * ROWS, ROWS)
        held = [each.at[group] for each in held]

        def compute(go_through_columns):
            for row, smem, barrier in zip(rows, held, arrived, strict=True):
                source = row.array.at[own, row.first + head]
                plgpu.copy_gmem_to_smem(source, smem, barrier.at[group])
            begin, count = (_load(ref.at[own], 1) for ref in span_refs)
            vectors = [_load(ref.at[head, own], 1) for ref in vector_refs[0]]
            for barrier in arrived:
                plgpu.barrier_wait(barrier.at[group])
            state = go_through_columns((begin, count, vectors, task.start()))[-1]
            matrices, vectors = task.finish(state)
            results = [each.at[group] for each in held_vectors]
            results = [*held[:sums], *results]
            for smem, values in zip(results, (*matrices, *vectors), strict=True):
                smem[...] = values.astype(smem.dtype)
            plgpu.commit_smem()
            for smem, ref in zip(results, out_refs, strict=True):
                is_matrix = len(ref.shape) == 3
                target = ref.at[own, head] if is_matrix else ref.at[head, own]
                plgpu.copy_smem_to_gmem(smem, target)
            plgpu.wait_smem_to_gmem(0)

        def body(index, *refs_and_carry):
            *refs, (begin, count, vectors, state) = refs_and_carry
            matrices, vector_refs = refs[: len(columns)], refs[len(columns) :]
            shape = ROWS, block_columns

            def hide(values, filling=0.0):
                before = begin - (low + index[0]) * block_columns
                column = _iota(shape, 1) - _spread(before, shape, 0)
                seen = (column >= 0) & (column < _spread(count, shape, 0))
                return jnp.where(seen, values, filling)

            offsets = [_spread(vector, shape, 0) for vector in vectors]
            offsets += [_spread(_load(ref, 0), shape, 1) for ref in vector_refs]
            state = task.step(held, matrices, hide, offsets, state)
            return begin, count, vectors, state

        block = plgpu.BlockSpec(
            (block_columns, dim), lambda i: (low + i, 0), transforms=tiled
        )
        vector_block = plgpu.BlockSpec((block_columns,), lambda i: (low + i,))
        _plgpu.emit_pipeline_warp_specialized(
            body,
            grid=(steps,),
            in_specs=[block] * len(columns) + [vector_block] * len(column_vectors),
            max_concurrent_steps=STAGES,
            num_compute_wgs=COMPUTING,
            memory_registers=LOADING_REGISTERS,
            wg_axis=AXES[-1],
            compute_context=compute,
        )(
            *(each.array.at[:, each.first + head, :] for each in columns),
            *(ref.at[head] for ref in vector_refs[1]),
        )

    held = plgpu.SMEM((COMPUTING, ROWS, dim), dtype, transforms=tiled)
    held_vector = plgpu.SMEM((COMPUTING, ROWS), jnp.float32)
    barrier = plgpu.Barrier(num_barriers=COMPUTING)
    read = [matrix] * (len(rows) + len(columns)), arrays[2:], low, steps
    with moves(_bytes_of(read), _bytes_of(out_type)):
        return plgpu.kernel(
            kernel,
            out_type=out_type,
            scratch_types=[
                [held] * len(rows),
                [held_vector] * row_vectors_out,
                [barrier] * len(rows),
            ],
            grid=(heads, events // TILE_ROWS),
            grid_names=AXES[:-1],
            num_threads=COMPUTING + 1,
            thread_name=AXES[-1],
            kernel_name=name,
            **launch_options(plgpu.CompilerParams(approx_math=True)),
        )(*jax.tree.leaves(operands[:-1]))


def _bytes_of(arrays: Any) -> int:
    """Every array once: columns that several tiles read stay in the cache."""
    return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(arrays))


def _blocks_of_tiles(spans: Spans, block: int) -> tuple[jax.Array, jax.Array]:
    """Returns ``[tiles]`` int32 first block of columns of each tile, and how many."""
    begin, count = (each.reshape(-1, TILE_ROWS) for each in spans)
    end = jnp.max(begin + count, axis=1, where=count > 0, initial=0)
    low = jnp.min(begin, axis=1, where=count > 0, initial=spans.begin.size)
    low = jnp.minimum(low, end) // block
    return low, (end + block - 1) // block - low


def _products(
    left: Sequence[Any], right: Sequence[Any], offsets: Sequence[jax.Array] = ()
) -> Sequence[jax.Array]:
    """Multiplies each matrix of shared memory with another one's transpose, and adds
    its offset, if there are any."""
    pairs = list(zip(left, right, strict=True))
    if _mosaic.is_interpreted():
        products = [_dot(a[...], b[...].T) for a, b in pairs]
        return list(map(jnp.add, products, offsets)) if offsets else products

    def multiply(totals):
        for total, (a, b) in zip(totals, pairs, strict=True):
            plgpu.wgmma(total, a, b.transpose((1, 0)))

    def multiply_alone(*totals):
        multiply(totals)
        return [total[...] for total in totals]

    if offsets:
        return pl.run_state(multiply)(tuple(map(_plgpu.ACC.init, offsets)))
    shapes = [_plgpu.ACC((a.shape[0], b.shape[0]), jnp.float32) for a, b in pairs]
    return pl.run_scoped(multiply_alone, *shapes)


def _add_products(
    totals: Sequence[jax.Array], left: Sequence[jax.Array], right: Sequence[Any]
) -> tuple[jax.Array, ...]:
    """Adds products of matrices in registers with others in shared memory."""
    pairs = [(a.astype(b.dtype), b) for a, b in zip(left, right, strict=True)]
    if _mosaic.is_interpreted():  # which executes no product of registers
        terms = [_dot(a, b[...]) for a, b in pairs]
        return tuple(total + term for total, term in zip(totals, terms, strict=True))

    def add(refs):
        for ref, (a, b) in zip(refs, pairs, strict=True):
            plgpu.wgmma(ref, a, b)

    return pl.run_state(add)(tuple(map(_plgpu.ACC.init, totals)))


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _load(ref: Any, axis: int) -> jax.Array:
    """Reads a vector that lies beside all rows (axis 1 of them is missing) or beside
    all columns (axis 0)."""
    if _mosaic.is_interpreted():
        return ref[...]
    layout = LAYOUT.reduce(axis)
    return _mosaic.load(ref, layout)


def _full(shape: tuple[int, ...], number: float) -> jax.Array:
    values = jnp.full(shape, number, jnp.float32)
    if _mosaic.is_interpreted():
        return values
    return plgpu.layout_cast(values, LAYOUT if len(shape) == 2 else LAYOUT.reduce(1))


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    if _mosaic.is_interpreted():
        return lax.broadcasted_iota(jnp.int32, shape, axis)
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=LAYOUT)


def _spread(vector: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    return lax.broadcast_in_dim(vector, shape, (axis,))
