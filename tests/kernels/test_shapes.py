"""The named shapes are those of the published models."""

from pathlib import Path

import pytest
from embark_kernels import SHAPES

from embark_jax.planner.request.table_list import read_table_list


@pytest.mark.parametrize("name", ["dlrm_dcnv2", "t180", "t200", "t510", "t7"])
def test_shapes_are_those_of_the_models(name):
    path = Path(__file__).parents[2] / "configs" / "models" / f"{name}.yaml"
    specs, features = read_table_list(path.read_text()).specs()
    tables = {table.name: table for table in specs}
    widths = sorted({table.dim for table in tables.values()})
    of_model = [each for each in SHAPES if each.split()[0] == name]
    assert of_model == [f"{name} {width}" for width in widths]
    for width in widths:
        shape = SHAPES[f"{name} {width}"]
        mine = [f for f in features if tables[f.table].dim == width]
        assert shape.hotness == tuple(f.hotness for f in mine)
        assert shape.rows == sum(t.rows for t in tables.values() if t.dim == width)
        assert shape.width == width
