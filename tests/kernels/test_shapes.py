"""Named shapes of published models."""

from pathlib import Path

import pytest
from embark_kernels import SHAPES

from embark_jax.planner.request.table_list import read_table_list

MODELS = Path(__file__).parents[2] / "configs" / "models"


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_the_models(name):
    model, width = name.split()
    tables, features = read_table_list((MODELS / f"{model}.yaml").read_text()).specs()
    rows = {table.name: table.rows for table in tables if table.dim == int(width)}
    hotness = tuple(f.hotness for f in features if f.table in rows)
    found = SHAPES[name]
    assert (found.rows, found.hotness) == (sum(rows.values()), hotness)
    assert found.width == int(width)


def test_shapes_are_cut_and_not_grown():
    shape = SHAPES["t7 128"]
    assert shape.within(2**62, 2**62) == shape
    assert shape.within(128 * 4 * 10, 100) == type(shape)(10, 128, 4, (20, 1, 1))
