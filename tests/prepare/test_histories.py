"""What histories of a log take, and what is said where there are none."""

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from embark_jax.data import DataError
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, samples

HISTORY = {"columns": ["item", "kind"], "longest": 4}
COLUMNS = {"user": "user", "time": "when", "history": HISTORY, "ignore": ["user"]}
LOG = "label,user,item,kind,when\n1,u1,i1,k1,1\n0,u1,i2,k2,2\n1,u2,i1,,3\n"


def logged(folder: Path, **changes) -> RowEncoder:
    """Prepares the log; returns what encodes rows to score."""
    path = folder / "log.csv"
    path.write_text(LOG)
    data = prepared(path, folder / "out", COLUMNS | changes, split="none")
    save_encoding(data.folder, data.manifest, folder / "run/encoding")
    return RowEncoder(folder / "run")


def test_users_of_a_log_are_those_of_training(tmp_path):
    """Texts of Parquet, each a user, also where the user is no feature."""
    columns = {"label": [1, 0, 1], "user": ["007", "7", "007"], "when": [1, 2, 3]}
    pq.write_table(pa.table(columns | {"item": list("abc")}), tmp_path / "log.parquet")
    options = {**COLUMNS, "history": {"columns": ["item"], "longest": 2}}
    data = prepared(tmp_path / "log.parquet", tmp_path / "out", options, split="none")
    assert [s["past_item"] for s in samples(data, "train")] == [[], [], ["a"]]
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    encoder = RowEncoder(tmp_path / "run")
    encoder.read_log(tmp_path / "log.parquet")
    (tmp_path / "rows.csv").write_text("user,item\n007,a\n7,a\n")
    for rows in (tmp_path / "rows.csv", {"user": ["007", "7"], "item": ["a", "a"]}):
        ((batch, _),) = encoder.batches(rows)
        assert np.asarray(batch.ids["past_item"]).tolist() == [[2, 4], [-1, 3]]


def test_times_of_a_log_have_an_order(tmp_path):
    encoder = logged(tmp_path)
    (tmp_path / "log.csv").write_text(f"{LOG}1,u1,i1,,2024-01-01\n")
    with pytest.raises(DataError, match="column when: has dates and whole numbers"):
        encoder.read_log(tmp_path / "log.csv")


def test_values_have_their_ids_also_after_a_log(tmp_path):
    encoder = logged(tmp_path)
    before = [encoder.ids(name, ["i2", "i9"]) for name in ("item", "past_item")]
    encoder.read_log(tmp_path / "log.csv")
    after = [encoder.ids(name, ["i2", "i9"]) for name in ("item", "past_item")]
    assert [x.tolist() for x in after] == [x.tolist() for x in before] == [[3, 1]] * 2


def test_missing_texts_are_those_of_the_column(tmp_path):
    encoder = logged(tmp_path, features={"kind": {"missing": ["k1", ""]}})
    past = {"past_item": [["i1", "i2"]], "past_kind": [["k1", "k2"]]}
    ((batch, _),) = encoder.batches({"item": ["i1"], "kind": ["NA"], **past})
    assert np.asarray(batch.ids["past_kind"])[0, -2:].tolist() == [0, 2]
    assert batch.ids["kind"].tolist() == [[1]]


def test_a_log_without_labels_has_positives(tmp_path):
    lines = "".join(f"a,i{n},{n}\n" for n in range(9))
    (tmp_path / "log.csv").write_text("u,item,t\n" + lines)
    history = {"columns": ["item"], "longest": 3}
    columns = {"label": None, "user": "u", "time": "t", "history": history}
    data = prepared(tmp_path / "log.csv", tmp_path / "out", columns, split="time")
    (test,) = data.test_batches(9)
    assert test.labels.tolist() == [1] * len(test)
    assert samples(data, "train")[-1]["past_item"] == ["i3", "i4", "i5"]
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    rows = {"u": ["a"], "item": ["i1"], "past_item": [["i2", "i3"]]}
    ((_, has_labels),) = RowEncoder(tmp_path / "run").batches(rows)
    assert not has_labels
    with pytest.raises(DataError, match="or label=null if each line is an event"):
        prepared(tmp_path / "log.csv", tmp_path / "new")


@pytest.mark.parametrize("text", [False, True])
def test_users_are_the_same_where_their_values_are(tmp_path, text):
    (tmp_path / "log.csv").write_text("label,user,item,when\n1,007,a,1\n1,7,b,2\n")
    columns = COLUMNS | {"history": {"columns": ["item"]}, "ignore": []}
    columns |= {"features": {"user": {"text": text}}}
    data = prepared(tmp_path / "log.csv", tmp_path / "out", columns, split="none")
    past = [sample["past_item"] for sample in samples(data, "train")]
    assert past == [[], [] if text else ["a"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": None}, "history: needs the columns user and time"),
        ({"ignore": [], "features": {"user": {"separator": ";"}}}, "has lists, must"),
        ({"history": {"columns": ["itm"]}}, "'itm' is no feature; did you mean"),
        ({"label": None, "history": {"columns": ["item"], "positive": True}}, "labels"),
    ],
)
def test_histories_that_cannot_be(tmp_path, change, message):
    with pytest.raises((DataError, ValidationError), match=message):
        logged(tmp_path, **change)


def test_rows_without_histories_are_told_what_to_bring(tmp_path):
    encoder = logged(tmp_path)
    message = "no column 'past_item'; it has the earlier events of the row's user, the"
    for rows in (tmp_path / "log.csv", {"item": ["i1"], "kind": ["k 3"]}):
        with pytest.raises(DataError, match=message):
            list(encoder.batches(rows))


def test_a_full_disk_is_said_before_a_page_of_it_is_missing(tmp_path, monkeypatch):
    """What is written by mapped pages must have its place: else the process ends."""

    def no_room(file, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*out.part.*'"):
        logged(tmp_path)
