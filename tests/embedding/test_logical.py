"""Rows of a table are found in the shards of any plan."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embark_jax.embedding.logical import pieces, rows_and_dim, table_shards
from embark_jax.plans.layout import lay_out
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec

ROWS, DIM, DEVICES = 37, 8, 6
BESIDE = Placement(TableSpec("beside", 17, DIM), "rb", 2, 1, (1, 2))


@st.composite
def placements(draw):
    row_shards, column_shards = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2]))
    owners = st.integers(0, DEVICES - 1)
    shards = row_shards * column_shards
    devices = draw(st.lists(owners, min_size=shards, max_size=shards))
    table, split = TableSpec("table", ROWS, DIM), (row_shards, column_shards)
    hot_rows = draw(st.integers(0, 3))
    return Placement(table, "rb", *split, tuple(devices), hot_rows=hot_rows)


def ranges(end):
    return st.builds(range, st.integers(0, end), st.integers(0, end), st.integers(1, 9))


@given(placements(), ranges(ROWS), st.integers(0, DIM), st.integers(0, DIM))
def test_pieces_have_each_row_and_column_once(placement, numbers, begin, end):
    features = [FeatureSpec("table"), FeatureSpec("beside")]
    storages = lay_out([BESIDE, placement], features, DEVICES)
    shards = table_shards(storages)["table"]
    assert rows_and_dim(shards) == (ROWS, DIM)
    table = np.arange(ROWS * DIM).reshape(ROWS, DIM)
    arrays = [np.full((s.rows_per_device * DEVICES, s.width), -1) for s in storages]
    for shard in shards:
        columns = np.arange(shard["columns"])
        for i in range(shard["rows"]):
            row = table[shard["first_row"] + i * shard["stride"]]
            array = arrays[shard["storage"]]
            array[shard["first_slot"] + i] = row[shard["first_column"] + columns]
    found = np.full((len(numbers), len(range(begin, end))), -1)
    for piece in pieces(shards, numbers, range(begin, end)):
        assert (found[piece.into] == -1).all()
        found[piece.into] = arrays[piece.storage][list(piece.slots)][:, piece.columns]
    np.testing.assert_array_equal(found, table[list(numbers), begin : max(begin, end)])
