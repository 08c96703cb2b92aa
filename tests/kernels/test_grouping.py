"""Groups of rows against NumPy."""

import functools

import jax
import numpy as np
import pytest
from embark_kernels import group_rows, group_targets, grouping
from embark_kernels._mosaic import interpreted
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.examples import few_examples, lists_of

NUM_IDS = 6


ids_lists = lists_of(st.integers(-2, NUM_IDS + 1))


def held_by(groups, rows):
    """{row: positions} as the groups of the ids say."""
    assert len(np.unique(groups.row)) == len(groups.row)
    held = {}
    for position, group in enumerate(np.asarray(groups.group)):
        if group < len(groups.row):
            held.setdefault(int(groups.row[group]), []).append(position)
        else:
            assert group == len(groups.row)
    used = {int(row) for row in groups.row if row < NUM_IDS}
    assert used == {row for row in rows if 0 <= row < NUM_IDS}
    return held


def positions_of(rows):
    return {
        row: [i for i, other in enumerate(rows) if other == row]
        for row in rows
        if 0 <= row < NUM_IDS
    }


@functools.partial(jax.jit, static_argnums=(1, 2))
def groups_in_xla(rows, few, room=None):
    """By the first ids of rows, or by sorting where rows are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "ROWS_PER_ID", NUM_IDS if few else 0)
        return group_rows(rows, NUM_IDS, max_groups=room, implementation="xla")


@few_examples
@given(rows=ids_lists, few=st.booleans())
def test_plain_xla_groups_equal_rows(rows, few):
    groups = groups_in_xla(np.array(rows, np.int32), few)
    assert groups.sorted_ids is None
    assert held_by(groups, rows) == positions_of(rows)


@few_examples
@given(rows=ids_lists, few=st.booleans())
def test_rows_without_room_are_counted(rows, few):
    room = 2
    groups = groups_in_xla(np.array(rows, np.int32), few, room)
    held = positions_of(rows)
    assert groups.needed == len(held)
    kept = [int(row) for row in groups.row if row < NUM_IDS]
    assert len(kept) == min(room, len(held))
    for number, row in enumerate(kept):
        np.testing.assert_array_equal(np.flatnonzero(groups.group == number), held[row])


@functools.partial(jax.jit, static_argnums=1)
def groups_for_the_kernel(rows, dense):
    make = group_targets if dense else group_rows
    with interpreted():
        return make(rows, NUM_IDS, implementation="mosaic_gpu")


@few_examples
@given(rows=ids_lists, dense=st.booleans())
def test_kernels_get_groups_of_equal_rows(rows, dense):
    groups = groups_for_the_kernel(np.array(rows, np.int32), dense)
    if dense:
        np.testing.assert_array_equal(groups.row, np.arange(NUM_IDS))
        valid = [row if 0 <= row < NUM_IDS else NUM_IDS for row in rows]
        np.testing.assert_array_equal(groups.group, valid)
    else:
        assert held_by(groups, rows) == positions_of(rows)
        assert groups.needed == len(positions_of(rows))
    order, row, group = map(np.asarray, groups.sorted_ids)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(rows)))
    np.testing.assert_array_equal(group, np.asarray(groups.group)[order])
    assert (np.diff(group) >= 0).all()
    np.testing.assert_array_equal(
        row, [r if 0 <= r < NUM_IDS else NUM_IDS for r in np.array(rows)[order]]
    )
