"""Causal attention over the events of many samples, padded or packed.

An event attends to itself and to those before it in its sample. Attention goes through
blocks of events, forward and backward, so that no array of ``[batch, heads, length,
length]`` is ever in memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from embark_kernels._attention_blocks import Rule, attend_blocks, bias_of_pairs
from embark_kernels._attention_blocks import declared_turns as declared_turns
from embark_kernels._implementation import choose_unless, why_no_kernels

Weights = Literal["silu", "softmax"]
"""What makes shares of scores: SiLU over a divisor, which does not compete (HSTU,
https://arxiv.org/abs/2402.17152, section 3.2), or softmax."""
QUERIES_AT_ONCE = 256
"""Queries of a block. Of 8 samples, 4 heads and 4,096 keys, its scores are 64 MiB in
bfloat16; those of all queries would be 1 GiB."""
BLOCKS_FROM = 128
"""Largest length from which plain XLA goes through samples block by block; shorter ones
are a block each."""
SMALLEST_BLOCK, LARGEST_BLOCK = 32, 512
"""Events of a block, which is a quarter to an eighth of the largest length."""
MOST_KERNEL_DIM = 128
"""Dims of a head whose gradients fit in the registers of the kernel."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heads:
    """Some of the heads in an array, which are read where they lie.

    Attributes:
      array: ``[events, heads, dim]``.
      first: the first of these heads.
      count: how many they are.
    """

    array: jax.Array
    first: int = dataclasses.field(metadata={"static": True})
    count: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def all_of(cls, array: jax.Array) -> Heads:
        """Returns all heads of an array."""
        return cls(array, 0, array.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``values``."""
        return self.array.shape[0], self.count, self.array.shape[2]

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of ``values``."""
        return self.array.dtype

    @property
    def values(self) -> jax.Array:
        """These heads, ``[events, count, dim]``."""
        return lax.slice_in_dim(self.array, self.first, self.first + self.count, axis=1)


def attend_packed(
    query: jax.Array | Heads,
    key: jax.Array | Heads,
    value: jax.Array | Heads,
    first: jax.Array,
    length: jax.Array,
    longest: int,
    weights: Weights,
    bias: jax.Array | None = None,
    divisor: int | None = None,
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Returns each event's sum of values, ``[events, heads, dim]``; zeros after the
    last event.

    The kernel goes over the pairs of events of the same sample alone, plain XLA over
    pairs of blocks of the same sample, or, of short samples, over all pairs of places.

    Args:
      query, key, value: ``[events, heads, dim]`` of packed samples, whose events lie
        one after the other from the first row on; or ``Heads`` of such arrays.
      first, length: ``[samples]`` int32 first event and number of events of each
        sample, in the order of the samples.
      longest: largest length that a sample may have.
      weights, bias, divisor: as in ``attend``; None is the largest length.
      implementation: "xla", "mosaic_gpu", or None for "mosaic_gpu" unless
        ``why_plain_attention`` has a reason not to.

    Raises:
      ValueError: if the implementation is unknown or cannot handle the arguments.
    """
    divisor = divisor or longest
    query, key, value = (
        x if isinstance(x, Heads) else Heads.all_of(x) for x in (query, key, value)
    )
    unsupported = why_unsupported(query, key, value, bias)
    if choose_unless(unsupported, implementation, _why_not_here) == "xla":
        arrays = _values([query, key, value])
        return _attend_plain(arrays, first, length, longest, weights, bias, divisor)
    # Imported here, so that plain XLA does not need Mosaic.
    from embark_kernels._attention_kernel import SiLU, Softmax, attend_mosaic_gpu

    events, _, dim = query.shape
    sample, position = places_of_events(first, length, events)
    begin = jnp.arange(events, dtype=jnp.int32) - position
    end = begin + length.at[sample].get(mode="clip")
    begin, end = (jnp.where(sample < len(first), each, 0) for each in (begin, end))
    scale = 1 / math.sqrt(dim)
    rule = SiLU(scale, divisor) if weights == "silu" else Softmax(scale)
    return attend_mosaic_gpu(query, key, value, begin, end, rule)


def _values(parts: list[Heads]) -> list[jax.Array]:
    """Returns the values of some heads each. An array that has them all is cut once: so
    its gradient is a concatenation, where that of slices is a sum of padded ones."""
    array = parts[0].array
    if any(each.array is not array for each in parts):
        return [each.values for each in parts]
    bounds = {0, array.shape[1]}
    for each in parts:
        bounds |= {each.first, each.first + each.count}
    begins = sorted(bounds)
    sizes = [end - begin for begin, end in itertools.pairwise(begins)]
    cuts = dict(zip(begins, lax.split(array, sizes, axis=1), strict=False))
    return [
        cut if (cut := cuts[each.first]).shape[1] == each.count else each.values
        for each in parts  # which may share heads
    ]


def why_plain_attention(
    head_dim: int, dtype: jax.typing.DTypeLike, biased: bool = False
) -> str:
    """Returns why ``attend_packed`` takes plain XLA here unless it is told otherwise;
    "" if it takes the kernel.

    It takes the kernel where that can run, can handle the arguments, and passes
    ``check``, once in a process.

    Args:
      head_dim, dtype: those of queries, keys and values.
      biased: whether scores have a bias.
    """
    array = jax.ShapeDtypeStruct((1, 1, head_dim), jnp.dtype(dtype))
    bias = jnp.zeros(1) if biased else None
    return why_unsupported(array, array, array, bias) or _why_not_here()


def _why_not_here() -> str:
    # Its products are instructions of Hopper, which newer GPUs have not.
    if reason := why_no_kernels(hopper=True):
        return reason
    # Imported here, since it imports the operations.
    from embark_kernels import check

    return check.attention_problem()


def why_unsupported(query: Any, key: Any, value: Any, bias: Any) -> str:
    """Returns why the kernel cannot handle arguments of ``attend_packed``; "" if it
    can."""
    if bias is not None:
        return "attention has a bias, which the kernel cannot add"
    if not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        types = ", ".join(each.dtype.name for each in (query, key, value))
        return f"queries, keys and values are {types}, must be bfloat16"
    *_, dim = query.shape
    if value.shape != query.shape:
        return f"queries are {query.shape}, values {value.shape}: must be alike"
    if dim % 16 or dim > MOST_KERNEL_DIM:
        limit = f"a multiple of 16 up to {MOST_KERNEL_DIM}"
        return f"heads have {dim} dims, must have {limit}"
    return ""


def _attend_plain(
    arrays: list[jax.Array],
    first: jax.Array,
    length: jax.Array,
    longest: int,
    weights: Weights,
    bias: jax.Array | None,
    divisor: int,
) -> jax.Array:
    """Moves the samples into blocks, or short ones into one each, attends, and packs
    the sums."""
    first, length = jnp.asarray(first), jnp.asarray(length)
    events, samples, dim = len(arrays[0]), len(first), arrays[0].shape[-1]
    sample, position = places_of_events(first, length, events)
    size, block, turns = longest, sample, None
    # A symbolic number of blocks is not divided into groups.
    if longest >= BLOCKS_FROM and isinstance(events, int):
        eighth = 2 ** ((longest - 1).bit_length() - 3)
        size = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, eighth))
        count = -(-length // size)
        begin = jnp.cumsum(count) - count
        block = begin.at[sample].get(mode="clip")
        blocks = (events + samples * (size - 1)) // size
        of_block, number = places_of_events(begin, count, blocks)
        turns = jnp.where(of_block < samples, number + 1, 0)
        # What a block, and those after it, have of their sample.
        first = first.at[of_block].get(mode="clip") + number * size
        length = length.at[of_block].get(mode="fill", fill_value=0) - number * size
    place = jnp.arange(size, dtype=jnp.int32)[None]
    source = jnp.where(place < length[:, None], first[:, None] + place, -1)
    target = jnp.where(sample < samples, block * size + position, -1)

    def unpack(array: jax.Array) -> jax.Array:
        padded = move_rows(array, source.reshape(-1), target)
        return padded.reshape(*source.shape, *array.shape[1:])

    query, key, value = map(unpack, arrays)
    if turns is None:
        total = attend(query, key, value, weights, bias, divisor)
    else:
        rule = Rule(weights, divisor, 1 / math.sqrt(dim))
        # Of samples as long as the mean; longer ones make it more.
        expected = math.ceil((events / max(samples, 1) / size + 1.5) / 2)
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        total = attend_blocks(rule, expected, query, key, value, bias, turns)
        total = total.swapaxes(1, 2)
    return move_rows(total.reshape(-1, *total.shape[2:]), target, source.reshape(-1))


def places_of_events(
    first: jax.Array, length: jax.Array, events: int
) -> tuple[jax.Array, jax.Array]:
    """Returns ``[events]`` int32 sample and position of each packed event; after the
    last one the number of samples, and no position."""
    ends = jnp.zeros(events, jnp.int32).at[first + length].add(1, mode="drop")
    sample = jnp.cumsum(ends, dtype=jnp.int32)  # samples that have ended
    begin = jnp.asarray(first).at[sample].get(mode="clip")
    return sample, jnp.arange(events, dtype=jnp.int32) - begin


@jax.custom_vjp
def move_rows(x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Returns ``x[source]``, zeros where there is no source.

    Args:
      x: ``[rows, …]``.
      source: ``[places]`` int32 row of each place, none of which is taken twice; out of
        range, or negative, for none.
      target: ``[rows]`` int32 place of each row, the inverse of ``source``: gradients
        are moved by it, where those of an index are added up row by row.
    """
    return (
        jnp.asarray(x)
        .at[source]
        .get(mode="fill", fill_value=0, wrap_negative_indices=False)
    )


def _move_rows_forward(x, source, target):
    return move_rows(x, source, target), (source, target)


def _move_rows_backward(places, gradient):
    source, target = places
    return move_rows(gradient, target, source), None, None


move_rows.defvjp(_move_rows_forward, _move_rows_backward)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    weights: Weights,
    bias: jax.Array | None = None,
    divisor: int | None = None,
) -> jax.Array:
    """Returns each place's sum of the values up to it, ``[batch, length, heads, dim]``.
    Where sequences end earlier, what comes after is not seen by their events.

    Args:
      query, key, value: ``[batch, length, heads, dim]``; the dims of values may differ.
        Scores and sums are rounded to their dtype, as are their gradients.
      weights: what makes shares of scores.
      bias: ``[distances]`` added to the score of two events by their distance; larger
        distances take the last.
      divisor: None is the length.
    """
    batch, length = query.shape[:2]
    divisor = divisor or length
    size = min(QUERIES_AT_ONCE, length)
    blocks = -(-length // size)
    padding = [(0, 0), (0, blocks * size - length), (0, 0), (0, 0)]
    queries = jnp.pad(query, padding).reshape(batch, blocks, size, *query.shape[2:])
    queries = jnp.moveaxis(queries, 1, 0), jnp.arange(blocks) * size
    rule = weights, bias, divisor
    if blocks == 1:  # without a loop, which not every exporter takes
        return _attend_block((queries[0][0], 0), (key, value), *rule)
    block = jax.checkpoint(lambda queries: _attend_block(queries, (key, value), *rule))
    total = jnp.moveaxis(lax.map(block, queries), 0, 1)
    return total.reshape(batch, blocks * size, *total.shape[3:])[:, :length]


def _attend_block(
    queries: tuple[jax.Array, jax.typing.ArrayLike],
    keys: tuple[jax.Array, jax.Array],
    weights: Weights,
    bias: jax.Array | None,
    divisor: int,
) -> jax.Array:
    """Returns the sums of some queries, ``[batch, queries, heads, dim]``.

    Args:
      queries: queries, and the place of the first one.
      keys: keys and values, from the first place on.
      weights, bias, divisor: as in ``attend``.
    """
    query, first = queries
    key, value = keys

    def add_up(share: jax.Array) -> jax.Array:
        return jnp.einsum("bhqk,bkhd->bqhd", share.astype(value.dtype), value)

    score = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    score = score.astype(jnp.float32) / math.sqrt(key.shape[-1])
    place = first + jnp.arange(query.shape[1])
    distance = place[:, None] - jnp.arange(key.shape[1])[None]
    distance = distance[None, None]
    if bias is not None:
        of_pairs = bias_of_pairs(bias, first, query.shape[1], key.shape[1])
        score += of_pairs[None, None]
    if weights == "silu":
        return add_up(jnp.where(distance >= 0, jax.nn.silu(score) / divisor, 0.0))
    score = jnp.where(distance >= 0, score, -jnp.inf)
    # No result depends on which number is subtracted from all scores.
    largest = lax.stop_gradient(score).max(axis=-1, keepdims=True)
    share = jnp.exp(score - largest)
    whole = jnp.moveaxis(share.sum(axis=-1), 1, 2)[..., None]
    return (add_up(share).astype(jnp.float32) / whole).astype(value.dtype)
