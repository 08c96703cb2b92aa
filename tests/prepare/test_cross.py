"""Crosses are features of the values of several columns, counted or hashed."""

from collections import Counter

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


def test_ids_are_those_of_python(tmp_path):
    rows = rows_of()
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "out", CROSS, split="none")
    (batch,) = data.in_file_order("train", 999)
    pairs = [
        (row["user"], str(int(row["hour"]))) if row["user"] else None for row in rows
    ]
    counts = Counter(filter(None, pairs))
    ordered = sorted(counts, key=lambda pair: (-counts[pair], "\x1f".join(pair)))
    ids = {pair: 2 + place for place, pair in enumerate(ordered)} | {None: 0}
    assert batch.ids["user_hour"][:, 0].tolist() == [ids[pair] for pair in pairs]
    assert data.table_rows["user_hour"] == 2 + len(counts)

    hashed = prepared(
        path, tmp_path / "h", CROSS, split="none", hash_columns={"user_hour": 50}
    )
    assert hashed.table_rows["user_hour"] == 50
    for folder, made in ((tmp_path / "a", data), (tmp_path / "b", hashed)):
        save_encoding(made.folder, made.manifest, folder / "encoding")
        (known,) = made.in_file_order("train", 999)
        columns = {name: [row[name] for row in rows] for name in ("user", "hour")}
        for given in (path, columns):
            ((scored, _),) = RowEncoder(folder).batches(given)
            np.testing.assert_array_equal(
                scored.ids["user_hour"], known.ids["user_hour"]
            )


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
