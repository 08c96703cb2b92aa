"""Lists of events belong together: one length, and missing values in their places."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.data.vocabulary import MISSING_ID
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared

LISTS = {"separator": ";", "sequence": True}
COLUMNS = {"features": {"items": LISTS, "kinds": LISTS}}
LINES = ["i1;i2;i3,c1;;c3", "i4,", ",", "i1;NA,;c2", "i2;i2;i3;i1,c1;c1;c2;c3"]
BAGS = [
    (["i1", "i2", "i3"], ["c1", None, "c3"]),
    (["i4"], [None]),
    ([], []),
    (["i1", None], [None, "c2"]),
    (["i2", "i2", "i3", "i1"], ["c1", "c1", "c2", "c3"]),
]


def write(path, lines) -> None:
    text = "".join(f"{i % 2},{line}\n" for i, line in enumerate(lines))
    path.write_text("label,items,kinds\n" + text)


def test_missing_values_keep_their_place(tmp_path):
    write(tmp_path / "rows.csv", LINES)
    data = prepared(tmp_path / "rows.csv", tmp_path / "out", COLUMNS, split="none")
    (batch,) = data.in_file_order("train", 99)
    ids = {n: np.asarray(batch.ids[n]) for n in ("items", "kinds")}
    events = {n: (of >= 0).sum(axis=1).tolist() for n, of in ids.items()}
    assert events["items"] == events["kinds"] == [3, 1, 0, 2, 4]
    missing = [[i == MISSING_ID for i in row if i >= 0] for row in ids["kinds"]]
    assert missing == [[value is None for value in kinds] for _, kinds in BAGS]

    # The same in Parquet, and in rows that are scored, whatever they are in.
    columns = [pa.array(bags) for bags in zip(*BAGS, strict=True)]
    table = pa.table([pa.array([0, 1, 0, 1, 0]), *columns], ["label", "items", "kinds"])
    pq.write_table(table, tmp_path / "rows.parquet")
    other = prepared(tmp_path / "rows.parquet", tmp_path / "o", COLUMNS, split="none")
    (same,) = other.in_file_order("train", 99)
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    encoder = RowEncoder(tmp_path / "run")
    for rows in (tmp_path / "rows.csv", tmp_path / "rows.parquet", table):
        ((scored, _),) = encoder.batches(rows)
        for name, known in ids.items():
            np.testing.assert_array_equal(np.asarray(same.ids[name]), known)
            np.testing.assert_array_equal(np.asarray(scored.ids[name]), known)
    with pytest.raises(DataError, match="row 0: lists of events have 2 of items, 1 of"):
        list(encoder.batches({"items": [["i1", "i2"]], "kinds": [["c1"]]}))


def test_lists_of_unlike_lengths_are_refused(tmp_path):
    write(tmp_path / "rows.csv", [*LINES, "i1;i2,c1", *LINES])
    message = "line 7: lists of events have 2 of items, 1 of kinds values, must be as"
    with pytest.raises(DataError, match=message):
        prepared(tmp_path / "rows.csv", tmp_path / "out", COLUMNS)
    skipped = prepared(
        tmp_path / "rows.csv", tmp_path / "a", COLUMNS, on_bad_line="skip"
    )
    assert skipped.manifest.skipped_lines == 1
    apart = {"features": {"items": LISTS, "kinds": {**LISTS, "independent": True}}}
    data = prepared(tmp_path / "rows.csv", tmp_path / "b", apart)
    assert data.manifest.skipped_lines == 0
