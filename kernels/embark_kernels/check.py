"""A small check of the GPU kernels on this machine's GPU, in this process.

Two programs call every kernel of tables, one with rows that a warp reads and one with
rows that a block reads. Ids repeat, some are out of range, and one row has many of
them. Two others call the kernels of attention, whose samples begin and end anywhere in
a tile. What the kernels make of them is compared with the textbook (``oracle``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embark_kernels import oracle
from embark_kernels.attention import Weights, attend_packed
from embark_kernels.buckets import unique_by_owner
from embark_kernels.grouping import group_rows
from embark_kernels.lookup import sum_bags
from embark_kernels.optimizers import RowwiseAdagrad
from embark_kernels.update import sum_and_update, sum_groups, update_rows

PROGRAMS = ((32, "float32"), (128, "bfloat16"))
"""Width and dtype of the table of each."""
ROWS, IDS, BAGS = 97, 300, 40
RULE = RowwiseAdagrad(0.1)
ATTENTION_PROGRAMS: tuple[tuple[Weights, int], ...] = (("silu", 128), ("softmax", 64))
"""What makes shares of scores in each, and dims of a head."""
HEADS, LENGTHS, ROOM = 2, (0, 1, 63, 130, 0, 5, 2, 64, 200, 17), 500
"""Heads, lengths of samples, and room for their events."""
ATTENTION_RESULTS: tuple[str, str, str, str] = (
    "attention",
    "query gradient",
    "key gradient",
    "value gradient",
)
BFLOAT16_ROUNDING = 2.0**-8
ATTENTION_LIMIT = 3 * BFLOAT16_ROUNDING
"""Shares are rounded and sums are, and a GPU's tanh errs by 2**-11."""
Expected = Mapping[str, tuple[np.ndarray, np.ndarray, float]]
"""By operation what it must return, its magnitudes, and the largest relative error."""
Program = tuple[Callable[..., dict[str, jax.Array]], tuple[np.ndarray, ...], Expected]
"""A program, its arguments, and what it must return."""


@functools.cache
def problem() -> str:
    """Returns what is wrong with the kernels of tables on the first GPU; "" if nothing
    is."""
    for width, dtype in PROGRAMS:
        about = f"{dtype} rows of width {width}"
        if wrong := _problem_of(about, make_program(width, dtype)):
            return wrong
    return ""


@functools.cache
def attention_problem() -> str:
    """Returns what is wrong with the kernels of attention on the first GPU; "" if
    nothing is."""
    for weights, dim in ATTENTION_PROGRAMS:
        about = f"{weights} attention of {dim} dims"
        if wrong := _problem_of(about, make_attention_program(weights, dim)):
            return wrong
    return ""


def _problem_of(what: str, made: Program) -> str:
    program, arguments, expected = made
    about = f"the GPU kernels failed their check with {what}"
    try:
        compiled = jax.jit(program).lower(*arguments).compile()
        # A caller may be tracing a program of its own.
        with jax.ensure_compile_time_eval():
            first, second = compiled(*arguments), compiled(*arguments)
        wrong = differences(first, second, expected)
    except Exception as error:  # the run goes on in plain XLA
        return f"{about}: {type(error).__name__}: {error}".splitlines()[0]
    return f"{about}: {', '.join(wrong)}" if wrong else ""


def make_program(width: int, dtype: str) -> Program:
    """Makes a program of all operations of tables."""
    rng = np.random.default_rng(width)
    table = rng.normal(size=(ROWS, width)).astype(jnp.dtype(dtype))
    state = rng.uniform(0.5, 2, (ROWS, 1)).astype(np.float32)
    # Their sums are exact, so that of an update only the rule rounds.
    values = (rng.integers(-16, 17, (BAGS, width)) / 8).astype(np.float32)
    ids = np.where(rng.random(IDS) < 0.4, 5, rng.integers(-2, ROWS + 2, IDS))
    ids = ids.astype(np.int32)
    bag = np.sort(rng.integers(0, BAGS + 1, IDS)).astype(np.int32)
    listed = rng.permutation(ROWS)[:BAGS].astype(np.int32)

    def program(table, state, values, ids, bag, listed):
        options: dict[str, Any] = {"implementation": "mosaic_gpu"}
        states = {"accumulator": state}
        sums = sum_bags(table, ids[None], bag[None], BAGS, **options)
        groups = group_rows(ids, ROWS, **options)
        of_groups = sum_groups(values, groups, bag, **options)
        by_row = jnp.zeros((2 * ROWS, width)).at[groups.row].add(of_groups, mode="drop")
        summed = table, states, groups, values, bag, RULE
        touched, _ = sum_and_update(*summed, **options)
        updated, _ = update_rows(table, states, listed, values, RULE, **options)
        owner = jnp.zeros_like(ids)
        slot = jnp.clip(ids, 0, ROWS - 1)
        unique = unique_by_owner(owner, slot, 1, ROWS, IDS, **options)
        return {
            "sum_bags": sums[0],
            "sum_groups": by_row[:ROWS],
            "sum_and_update": touched,
            "update_rows": updated,
            "unique_by_owner": unique.slot[0, unique.inverse],
        }

    sums = oracle.sum_rows(values, bag, ids, ROWS)
    rows = np.unique(ids[(ids >= 0) & (ids < ROWS)])
    states = {"accumulator": state}
    sum_limit = (IDS + 2) * float(np.finfo(np.float32).eps)
    rule_limit = (width + 16) * float(np.finfo(np.float32).eps)
    rule_limit += BFLOAT16_ROUNDING if dtype == "bfloat16" else 0.0

    def updated(rows, gradients):
        given = RULE, table, states, rows, gradients, 1
        return oracle.update(*given)[0], oracle.update_magnitudes(*given)[0], rule_limit

    slots = np.clip(ids, 0, ROWS - 1)
    expected = {
        "sum_bags": (*oracle.sum_rows(table, ids, bag, BAGS), sum_limit),
        "sum_groups": (*sums, sum_limit),
        "sum_and_update": updated(rows, sums[0][rows]),
        "update_rows": updated(listed, values),
        "unique_by_owner": (slots, np.zeros(IDS), 0.0),
    }
    return program, (table, state, values, ids, bag, listed), expected


def make_attention_program(
    weights: Weights, dim: int, lengths: Sequence[int] | None = None
) -> Program:
    """Makes a program of attention, in samples of some lengths, and its gradients."""
    rng = np.random.default_rng(dim)
    length = np.array(lengths or LENGTHS, np.int32)
    first = np.cumsum(length, dtype=np.int32) - length
    shape = sum(lengths or [ROOM]), HEADS, dim
    arrays = [rng.normal(size=shape).astype(jnp.bfloat16) for _ in range(4)]
    # What of another sample would be added is large beside what must be.
    for begin, count in zip(first[::2], length[::2], strict=True):
        for value_or_gradient in arrays[2:]:
            value_or_gradient[begin : begin + count] *= 256
    longest = int(length.max())

    def program(query, key, value, gradient, first, length):
        def attend(query, key, value):
            given: Any = query, key, value, first, length, longest, weights
            return attend_packed(*given, implementation="mosaic_gpu")

        sums, pull = jax.vjp(attend, query, key, value)
        return dict(zip(ATTENTION_RESULTS, (sums, *pull(gradient)), strict=True))

    given: Any = *arrays, first, length, weights, longest
    results = oracle.attention(*given)
    expected = {
        name: (*result, ATTENTION_LIMIT)
        for name, result in zip(ATTENTION_RESULTS, results, strict=True)
    }
    return program, (*arrays, first, length), expected


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], expected: Expected
) -> list[str]:
    """Returns what is wrong with the results of two calls, by operation."""
    wrong = []
    for name, (value, magnitudes, limit) in expected.items():
        actual, again = np.asarray(first[name]), np.asarray(second[name])
        if not largest_error(actual, value, magnitudes) <= limit:
            wrong.append(f"{name} differs from the textbook")
        elif actual.tobytes() != again.tobytes():
            wrong.append(f"{name} differs from one call to the next")
    return wrong


def largest_error(
    actual: np.ndarray, expected: np.ndarray, magnitudes: np.ndarray
) -> float:
    """Returns the largest error relative to its magnitude: infinite where that is 0
    and there is an error, and for what is not finite or not of the expected shape."""
    if actual.shape != expected.shape:
        return np.inf
    difference = np.abs(actual.astype(np.float64) - expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / magnitudes)
    return float(
        np.max(np.nan_to_num(relative, nan=np.inf, posinf=np.inf), initial=0.0)
    )
