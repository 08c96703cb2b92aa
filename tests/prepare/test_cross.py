"""Crosses, features of the values of several columns, that are hashed or refused."""

import numpy as np
import pytest

from embark_jax.data import DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, write_table

CROSS = {"cross": {"user_hour": ["user", "hour"]}}


def rows_of(count: int = 200) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "label": i % 2,
            "user": f"u{rng.zipf(1.5) % 9}" if i % 13 else "",
            "hour": f"{rng.integers(6):02}",
        }
        for i in range(count)
    ]


def test_hashed_ids_are_those_of_rows_that_are_scored(tmp_path):
    rows, hashed = rows_of(), {"user_hour": 50}
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "h", CROSS, split="none", hash_columns=hashed)
    assert data.table_rows["user_hour"] == 50
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    (known,) = data.in_file_order("train", 999)
    ((scored, _),) = RowEncoder(tmp_path / "run").batches(path)
    np.testing.assert_array_equal(scored.ids["user_hour"], known.ids["user_hour"])


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ({"user": ["user", "hour"]}, "column 'user' is there, and a cross, too"),
        ({"x": ["user", "our"]}, "cross.x: 'our' is no feature of .*did you mean"),
    ],
)
def test_crosses_that_cannot_be(tmp_path, cross, message):
    path = write_table(tmp_path / "rows.csv", rows_of(20))
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path / "out", {"cross": cross})
