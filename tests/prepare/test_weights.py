"""Weights of the values of lists, beside what plain Python makes of the same rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data import BatchChecker, DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import encode
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, write_table

PAIRS = {"tags": "scores", "seen": "ages"}
LISTS = {"separator": ";"}
COLUMNS = {"features": {"tags": LISTS, "seen": LISTS}, "weights": PAIRS}


def rows_of(seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(50):
        row = {"label": i % 2}
        for name, of in PAIRS.items():
            values = rng.choice(["a", "b", "c", ""], rng.integers(0, 5)).tolist()
            row[name] = values if values != [""] else ["a"]
            row[of] = (rng.integers(-9, 9, len(row[name])) / 4).tolist()
        rows.append(row)
    rows[0] |= {"tags": ["a", "b", "", "a"], "scores": [1.0, 2.0, 3.0, 4.0]}
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_weights_lie_beside_their_values(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(encode, "CHUNK_ROWS", 20)
    rows, lists = rows_of(seed), [*PAIRS, *PAIRS.values()]
    texts = [{n: ";".join(map(str, row[n])) for n in lists} for row in rows]
    labels = [{"label": row["label"]} for row in rows]
    path = write_table(
        tmp_path / "rows.csv", [x | y for x, y in zip(labels, texts, strict=True)]
    )
    table = pa.table(
        {n: [[x if x != "" else None for x in row[n]] for row in rows] for n in lists}
        | {"label": [row["label"] for row in rows]}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    for raw in (path, tmp_path / "rows.parquet"):
        data = prepared(raw, tmp_path / raw.suffix, COLUMNS, split="none")
        hotness = {name: max(len(row[name]) for row in rows) for name in PAIRS}
        assert data.features[0] == FeatureSpec("tags", "tags", 4, "mean", True)
        check = BatchChecker(data.features, data.table_rows, data.dense_features)
        (batch,) = map(check, data.in_file_order("train", 99))
        for name, of in PAIRS.items():
            expected = np.zeros((50, hotness[name]), np.float32)
            for at, row in enumerate(rows):
                expected[at, : len(row[of])] = row[of]
                bag = [i for i in batch.ids[name][at] if i >= 0]
                assert [i == 0 for i in bag] == [x == "" for x in row[name]]
            np.testing.assert_array_equal(batch.weights[name], expected)
        run = tmp_path / f"run of {raw.suffix}"
        save_encoding(data.folder, data.manifest, run / "encoding")
        encoder = RowEncoder(run)
        for given in (raw, table):
            ((scored, _),) = encoder.batches(given)
            for name in PAIRS:
                np.testing.assert_array_equal(scored.ids[name], batch.ids[name])
                np.testing.assert_array_equal(scored.weights[name], batch.weights[name])
        known = [batch.ids["tags"][0, 0], 1, 0]
        assert encoder.ids("tags", ["a", "x", None]).tolist() == known


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ("1", "line 2: lists of values of tags have 1 of scores, 2 of tags values, mu"),
        ("1;x", "line 2: column scores: value is '1;x', must be numbers"),
        ("1;", "line 2: column scores: value is '1;', must be numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, scores, message):
    rows = [{"label": 1, "tags": "a;b", "scores": scores}]
    path = write_table(tmp_path / "rows.csv", rows)
    columns = {"features": {"tags": LISTS}, "weights": {"tags": "scores"}}
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path / "out", columns, split="none")
    columns["weights"] = {"tag": "scores"}
    with pytest.raises(DataError, match=r"weights\.tag: is no feature; did you mean"):
        prepared(path, tmp_path / "o", columns, split="none")
