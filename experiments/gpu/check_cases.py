"""Small inputs that break kernels, and what the kernels must make of them.

Bags and groups are of hundreds of ids, and of so few that one ends at each of the ids
that a program reads at once: kernels have code of its own for each. Ids follow a Zipf
law, one row has many of them, others are out of range, and what padding must not read
is NaN. Gradients that are summed and at once applied are multiples of 1/16, so that
their sums are exact and only the optimizer rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import check, oracle
from embark_kernels.attention import Weights
from embark_kernels.buckets import unique_by_owner
from embark_kernels.check import largest_error
from embark_kernels.grouping import begins_segment, group_rows, number_segments
from embark_kernels.lookup import pooled_lookup, sum_bags
from embark_kernels.optimizers import (
    ROW_OPTIMIZERS,
    LazyAdam,
    RowOptimizer,
    RowwiseAdagrad,
)
from embark_kernels.update import sum_and_update, sum_groups, update_rows

WIDTHS = (16, 32, 64, 96, 128, 256, 512)
BETAS: dict[str, Any] = {"beta1": 0.5, "beta2": 0.75}  # whose powers are exact
RULES = {rule: BETAS if rule is LazyAdam else {} for rule in ROW_OPTIMIZERS.values()}
OPTIMIZERS = (
    *(rule(0.1, **options) for rule, options in RULES.items()),
    LazyAdam(0.1, **BETAS, schedule=lambda steps: 0.5**steps, weight_decay=0.3),
    RowwiseAdagrad(0.1, weight_decay=0.3),
)
ATTENTION: tuple[Weights, ...] = ("silu", "softmax")
LENGTHS = ((128, 64, 192), (500,))
ATTENTION_DIMS: dict[Weights, int] = {"silu": 96, "softmax": 16}
STEP = 3
ROWS = 997
IDS = 2048
LONG_BAG = 300
FEW = (0, 0, 1, 1, 2, 3, 5)
"""Lengths of bags, and of groups, many of which end where others do not."""
OUT_OF_RANGE = (-1, -(2**31), ROWS, 2**31 - 1)
EPS = float(np.finfo(np.float32).eps)
BFLOAT16_ROUNDING = 2.0**-8
FACTOR_ROUNDINGS = 2
"""Roundings of a term of a sum, beside one for each term."""
RULE_ROUNDINGS = 16
"""Roundings of an optimizer, counting two for each division and square root."""
KERNELS: dict[str, Any] = {"implementation": "mosaic_gpu"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A compiled program with its inputs.

    Attributes:
      op: name of the operation.
      width: width of the rows; None for integer work.
      dtype: data type of table or values.
      about: the optimizer, or other things that tell cases apart.
      function: the program.
      arguments: its arguments, in NumPy.
      expected: returns, for each array of the result, what it must be and its
        magnitudes.
      limit: largest error, relative to the magnitudes.
      updated: number of first arguments that are donated.
    """

    op: str
    width: int | None
    dtype: str
    about: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    expected: Callable[[], Any]
    limit: float
    updated: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """What tells it apart from others."""
        names = ("op", "width", "dtype", "about")
        return {name: getattr(self, name) for name in names}

    @property
    def program(self) -> Any:
        """The jitted function."""
        return jax.jit(self.function, donate_argnums=range(self.updated))


def cases(width: int | None) -> Iterator[Case]:
    """Makes the cases of one width; None has the integer work, which has none."""
    if width is None:
        yield from _number_segments()
        yield _unique()
        return
    rng = np.random.default_rng(width)
    for dtype, weighted in (("float32", False), ("bfloat16", True)):
        yield _pooled_lookup(rng, width, dtype, weighted)
        yield _sum_bags(rng, width, dtype, not weighted)
        yield _sum_groups(rng, width, dtype, weighted)
    rules = [("float32", optimizer) for optimizer in OPTIMIZERS]
    for dtype, optimizer in [*rules, ("bfloat16", RowwiseAdagrad(0.1))]:
        yield _update_rows(rng, width, dtype, optimizer)
        yield _sum_and_update(rng, width, dtype, optimizer)
        if optimizer.schedule:
            yield _sum_and_update(rng, width, dtype, optimizer, apply=False)


def attention_cases() -> Iterator[Case]:
    """Makes the cases of attention: with room after the last event, with samples that
    end where a tile does, and with one sample alone."""
    cases = [(name, dim, check.LENGTHS) for name in ATTENTION for dim in (64, 128)]
    cases += [(name, 128, lengths) for name in ATTENTION for lengths in LENGTHS]
    cases += [(name, dim, check.LENGTHS) for name, dim in ATTENTION_DIMS.items()]
    for weights, dim, lengths in cases:
        given = None if lengths == check.LENGTHS else lengths
        function, arguments, expected = check.make_attention_program(
            weights, dim, given
        )
        results = [expected[name][:2] for name in sorted(expected)]
        yield Case(
            "attention",
            dim,
            "bfloat16",
            f"{weights}, samples of {' '.join(map(str, lengths))}",
            function,
            arguments,
            lambda results=results: results,
            check.ATTENTION_LIMIT,
        )


def run_case(case: Case) -> dict[str, Any]:
    """Runs a case twice. Returns its fields with ``error``, ``limit``, and
    ``problem``, which is "" if it passed."""
    row = {**case.fields, "error": None, "limit": case.limit, "problem": ""}
    try:
        first, second = _results(case), _results(case)
    except Exception as error:  # a failure is a row of the result
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return {**row, "problem": reason[:200]}
    error = max(
        largest_error(actual, *expected)
        for actual, expected in zip(first, case.expected(), strict=True)
    )
    row["error"] = error if np.isfinite(error) else None
    if not error <= case.limit:
        row["problem"] = "differs from the textbook"
    elif [x.tobytes() for x in first] != [x.tobytes() for x in second]:
        row["problem"] = "differs from one call to the next"
    return row


def _results(case: Case) -> list[np.ndarray]:
    arguments = jax.tree.map(jnp.array, case.arguments)
    return [np.asarray(x) for x in jax.tree.leaves(case.program(*arguments))]


def _number_segments() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for segments, longest, capacity in ((600, 4, 1000), (600, 4, 300), (5, IDS, 8)):
        lengths = rng.integers(1, longest + 1, segments)
        # A block writes many segments as vectors, few one by one.
        lengths = np.append(lengths, np.full(20, 64))
        number = np.arange(len(lengths))
        keys = np.repeat(number * 7, lengths).astype(np.uint32)
        numbers = np.repeat(number, lengths)
        first = (np.cumsum(lengths) - lengths)[:capacity]

        def function(keys, capacity=capacity, shape=first.shape):
            number, first = number_segments(begins_segment(keys), capacity, **KERNELS)
            return number, first[: shape[0]]

        about = f"{segments} segments of up to {longest}, room for {capacity}"
        yield Case(
            "number_segments",
            None,
            "int32",
            about,
            function,
            (keys,),
            lambda numbers=numbers, first=first: _exact(numbers, first),
            0.0,
        )


def _unique() -> Case:
    ids = np.maximum(_ids(np.random.default_rng(1), IDS, 0.0), 0)
    listed, inverse = np.unique(ids, return_inverse=True)
    slots = np.full(IDS, ROWS)
    slots[: len(listed)] = listed

    def function(ids):
        buckets = unique_by_owner(jnp.zeros_like(ids), ids, 1, ROWS, IDS, **KERNELS)
        return buckets.slot[0], buckets.inverse

    return Case(
        "unique_by_owner",
        None,
        "int32",
        "",
        function,
        (ids,),
        lambda: _exact(slots, inverse),
        0.0,
    )


def _pooled_lookup(rng, width: int, dtype: str, weighted: bool) -> Case:
    # Programs of one bag each, or of many.
    hotness, batch = (1, LONG_BAG, 7), 8
    if weighted:
        hotness += tuple(length for length in FEW if length) * 10
    table, bags = _table(rng, width, dtype), batch * len(hotness)
    ids = _ids(rng, (batch, sum(hotness)), 0.1)
    ids[0] = -1  # empty bags
    weights = _normal(rng, ids.shape) if weighted else None
    bag = np.repeat(np.arange(bags), np.tile(hotness, batch))

    def function(table, ids, weights):
        return pooled_lookup(table, ids, weights, hotness=hotness, **KERNELS)

    def expected():
        flat = None if weights is None else weights.ravel()
        sums = oracle.sum_rows(table, ids.ravel(), bag, bags, flat)
        return [tuple(x.reshape(batch, -1, width) for x in sums)]

    return Case(
        "pooled_lookup",
        width,
        dtype,
        "weighted" if weighted else "",
        function,
        (table, ids, weights),
        expected,
        _sum_limit(LONG_BAG),
    )


def _sum_bags(rng, width: int, dtype: str, weighted: bool) -> Case:
    """Makes bags of two senders, with rows at their ends that no bag has. Of the last
    bags all are empty, so that a program has no ids."""
    lengths = np.array([*FEW * 40, LONG_BAG, 64])
    senders, empty = 2, 128
    bags = len(lengths) + empty
    counts = [[*rng.permutation(lengths), *[0] * empty, 9] for _ in range(senders)]
    bag = np.stack([np.repeat(np.arange(bags + 1), count) for count in counts])
    table, rows = _table(rng, width, dtype), _ids(rng, bag.shape, 0.1)
    rows[bag == bags] = 0  # NaN
    weights = _normal(rng, bag.shape) if weighted else None

    def function(table, rows, bag, weights):
        return sum_bags(table, rows, bag, bags, weights, **KERNELS)

    def expected():
        first_bag = np.arange(senders)[:, None] * bags
        target = np.where(bag < bags, first_bag + bag, -1).ravel()
        flat = None if weights is None else weights.ravel()
        sums = oracle.sum_rows(table, rows.ravel(), target, senders * bags, flat)
        return [tuple(x.reshape(senders, bags, width) for x in sums)]

    return Case(
        "sum_bags",
        width,
        dtype,
        "weighted" if weighted else "",
        function,
        (table, rows, bag.astype(np.int32), weights),
        expected,
        _sum_limit(LONG_BAG),
    )


def _sum_groups(rng, width: int, dtype: str, weighted: bool) -> Case:
    values = _table(rng, width, dtype)
    rows, source = _grouped_ids(rng), _ids(rng, IDS, 0.1)
    weights = _normal(rng, IDS) if weighted else None
    _, count = _touched(rows)

    def function(values, rows, source, weights):
        groups = group_rows(rows, ROWS, **KERNELS)
        sums = sum_groups(values, groups, source, weights, **KERNELS)
        # Unused groups are beyond the rows.
        return jnp.zeros((2 * ROWS, width)).at[groups.row].add(sums, mode="drop")

    def expected():
        sums = oracle.sum_rows(values, source, rows, ROWS, weights)
        return [tuple(np.pad(x, ((0, ROWS), (0, 0))) for x in sums)]

    return Case(
        "sum_groups",
        width,
        dtype,
        "weighted" if weighted else "",
        function,
        (values, rows, source, weights),
        expected,
        _sum_limit(count.max()),
    )


def _update_rows(rng, width: int, dtype: str, optimizer: RowOptimizer) -> Case:
    table, states = _table_and_states(rng, width, dtype, optimizer)
    # With row 0, but not all others.
    rows = 1 + rng.permutation(ROWS + ROWS // 3 - 1)[: ROWS - 1]
    rows = rng.permutation(np.append(0, rows))
    rows = np.where(rows < ROWS, rows, rng.choice(OUT_OF_RANGE, ROWS)).astype(np.int32)
    listed = (rows >= 0) & (rows < ROWS)
    gradients = _normal(rng, (ROWS, width))
    gradients[~listed] = np.nan
    noise = _noise(rng, dtype)

    def function(table, states, rows, gradients, noise):
        options = {"step": STEP, "noise": noise, **KERNELS}
        return update_rows(table, states, rows, gradients, optimizer, **options)

    return Case(
        "update_rows",
        width,
        dtype,
        name_of(optimizer),
        function,
        (table, states, rows, gradients, noise),
        lambda: _updated(optimizer, table, states, rows[listed], gradients[listed]),
        _update_limit(optimizer, width, dtype),
        2,
    )


def _sum_and_update(
    rng, width: int, dtype: str, optimizer: RowOptimizer, apply: bool = True
) -> Case:
    """Makes an update, which must change nothing if it is not applied."""
    table, states = _table_and_states(rng, width, dtype, optimizer)
    values = (rng.integers(-16, 17, (ROWS, width)) / 8).astype(table.dtype)
    values[0] = np.nan
    rows, source = _grouped_ids(rng), _ids(rng, IDS, 0.1)
    weights = rng.choice([0.5, 1, -2], IDS).astype(np.float32)
    noise = _noise(rng, dtype)

    def function(table, states, rows, values, source, weights, noise, apply):
        groups = group_rows(rows, ROWS, **KERNELS)
        if noise is not None:
            noise = noise.at[groups.row].get(mode="clip")
        options = {"apply": apply, "step": STEP, "noise": noise, **KERNELS}
        return sum_and_update(
            table, states, groups, values, source, optimizer, weights, **options
        )

    def expected():
        touched, _ = _touched(rows if apply else rows[:0])
        sums, _ = oracle.sum_rows(values, source, rows, ROWS, weights)
        return _updated(optimizer, table, states, touched, sums[touched])

    return Case(
        "sum_and_update",
        width,
        dtype,
        name_of(optimizer) + ("" if apply else ", apply=False"),
        function,
        (table, states, rows, values, source, weights, noise, apply),
        expected,
        _update_limit(optimizer, width, dtype),
        2,
    )


def _ids(rng, shape, padded: float) -> np.ndarray:
    """Makes int32 rows, never row 0: most are one row, the others follow a Zipf law,
    and a share is out of range."""
    ids = 1 + (rng.zipf(1.2, shape) * 7919) % (ROWS - 1)
    ids = np.where(rng.random(shape) < 0.6, ROWS - 1, ids)
    outside = rng.choice(OUT_OF_RANGE, shape)
    return np.where(rng.random(shape) < padded, outside, ids).astype(np.int32)


def _grouped_ids(rng) -> np.ndarray:
    """Makes ``[IDS]`` ids of which many rows, row 0, too, have few."""
    few = np.repeat(np.arange(ROWS), np.resize(FEW[2:], ROWS))[: IDS // 2]
    ids = np.append(few, _ids(rng, IDS - len(few), 0.1))
    return rng.permutation(ids).astype(np.int32)


def _touched(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows in range, and how often each occurs."""
    return np.unique(rows[(rows >= 0) & (rows < ROWS)], return_counts=True)


def _normal(rng, shape) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _table(rng, width: int, dtype: str) -> np.ndarray:
    """Makes a table whose row 0, which kernels read in place of padding, is NaN."""
    table = _normal(rng, (ROWS, width)).astype(jnp.dtype(dtype))
    table[0] = np.nan
    return table


def _table_and_states(
    rng, width: int, dtype: str, optimizer: RowOptimizer
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    table = _normal(rng, (ROWS, width)).astype(jnp.dtype(dtype))
    return table, {
        name: rng.uniform(0.5, 2, (ROWS, state_width)).astype(np.float32)
        for name, state_width in optimizer.state_widths(width).items()
    }


def _noise(rng, dtype: str) -> np.ndarray | None:
    """Makes the noise of rows of 16 bits, which are rounded stochastically."""
    return rng.integers(0, 2**32, ROWS, np.uint32) if dtype == "bfloat16" else None


def _updated(optimizer, table, states, rows, gradients):
    """Returns new rows and states in the order in which JAX flattens them, with their
    magnitudes."""
    new = oracle.update(optimizer, table, states, rows, gradients, STEP)
    magnitudes = oracle.update_magnitudes(
        optimizer, table, states, rows, gradients, STEP
    )
    return list(zip(jax.tree.leaves(new), jax.tree.leaves(magnitudes), strict=True))


def _exact(*arrays: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(array, np.zeros(array.shape)) for array in arrays]


def _sum_limit(terms: int) -> float:
    return (int(terms) + FACTOR_ROUNDINGS) * EPS


def _update_limit(optimizer: RowOptimizer, width: int, dtype: str) -> float:
    roundings = RULE_ROUNDINGS + (width if optimizer.row_wise else 0)
    # To a neighbour, not to the nearest.
    rounding = 2 * BFLOAT16_ROUNDING if dtype == "bfloat16" else 0.0
    return roundings * EPS + rounding


def name_of(optimizer: RowOptimizer) -> str:
    """Tells it apart from others."""
    decay = ", decay" if optimizer.weight_decay else ""
    return type(optimizer).__name__ + decay
