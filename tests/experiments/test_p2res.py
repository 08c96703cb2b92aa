"""The workloads of P2RES have the sizes of its Table 1."""

from pathlib import Path

import pytest

from embark_jax import planner

LISTS = Path(__file__).parents[2] / "experiments" / "hot_rows" / "p2res"


@pytest.mark.parametrize(
    ("name", "bytes_published", "sparse"),
    [
        ("taobao", 117 * 2**20, 4),
        ("criteo_kaggle", 411e6, 39),
        ("terabyte", 96.1e9, 26),
    ],
)
def test_size_and_columns_are_those_of_the_paper(name, bytes_published, sparse):
    tables, features = planner.load_table_list(LISTS / f"{name}.yaml").specs()
    table_bytes = 4 * sum(table.rows * table.dim for table in tables)
    assert table_bytes == pytest.approx(bytes_published, rel=0.002)
    assert sum(feature.hotness for feature in features) == sparse
