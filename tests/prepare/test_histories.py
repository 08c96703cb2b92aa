"""Histories of a log, beside what plain Python makes of the same lines."""

import csv
import errno
import gzip
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from embark_jax.data import DataError, PreparedData
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare import encode, histories
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, samples
from tests.thorough import thorough

LONGEST = 4
HISTORY = {"columns": ["item", "kind"], "longest": LONGEST}
COLUMNS = {"user": "user", "time": "when", "history": HISTORY, "ignore": ["user"]}
NAMES = ("label", "user", "item", "kind", "when")


def random_log(seed: int) -> list[dict[str, str]]:
    """Lines with ties in time, users of one event, and missing values."""
    rng = np.random.default_rng(seed)
    users = rng.zipf(1.6, rng.integers(40, 120)) % 20
    kinds = ["k,1", 'k"2', "k 3", "", "NA", "007", "7.0"]
    forms = ["{}", "2024-02-{:02} 00:00:00", "2024-02-{:02}T00:00:00+09:00"]
    return [
        {
            "label": str(rng.integers(2)),
            "user": f"u{user}" if user else "",
            "item": f"i{rng.zipf(1.4) % 15}" if rng.random() < 0.9 else "",
            "kind": str(rng.choice(kinds)),
            "when": forms[seed % 3].format(int(rng.integers(1, 6 + seed % 5 * 5))),
        }
        for user in users
    ]


def write(folder: Path, lines: list[dict[str, str]], files: int) -> None:
    """One CSV file, or several, the last one compressed."""
    folder.mkdir()
    for number in range(files):
        path = folder / f"{number}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, NAMES)
            writer.writeheader()
            writer.writerows(lines[number::files])
    if files > 1:
        (folder / f"{number}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def value(text: str) -> str | None:
    return {"": None, "NA": None, "007": "7", "7.0": "7"}.get(text, text)


def expected(
    lines: list[dict[str, str]], positive: bool, value=value
) -> list[dict[str, list]]:
    """The history of each line: the earlier events of its user, and only those."""
    of_user = defaultdict(list)
    times = [line["when"].zfill(9) for line in lines]
    for place, line in enumerate(lines):
        if line["user"] and (line["label"] == "1" or not positive):
            of_user[line["user"]].append((times[place], place))
    found = []
    for line, time in zip(lines, times, strict=True):
        events = of_user[line["user"]]
        before = sorted(event for event in events if event[0] < time)[-LONGEST:]
        found.append(
            {
                f"past_{name}": [value(lines[place][name]) for _, place in before]
                for name in HISTORY["columns"]
            }
        )
    return found


def check(data: PreparedData, lines: list[dict[str, str]], positive: bool) -> None:
    found = samples(data, "train")
    assert len(found) == len(lines)
    for sample, line, history in zip(
        found, lines, expected(lines, positive), strict=True
    ):
        assert sample["item"] == value(line["item"])
        assert {name: sample[name] for name in history} == history


@pytest.mark.parametrize("seed", thorough(range(50), range(15)))
def test_histories_are_those_of_python(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(histories, "FILE_EVENTS", 20)
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    lines, files, positive = random_log(seed), 1 + seed % 3, seed % 2 > 0
    write(tmp_path / "log", lines, files)
    columns = COLUMNS | {"history": HISTORY | {"positive": positive}}
    path = tmp_path / "log" if files > 1 else tmp_path / "log" / "0.csv"
    data = prepared(
        path.rename(tmp_path / "log.csv"), tmp_path / "out", columns, split="none"
    )
    in_order = [line for number in range(files) for line in lines[number::files]]
    check(data, in_order, positive)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({}, value),
        ({"text": True}, lambda text: text or None),
        ({"missing": ["k 3", ""]}, lambda text: None if text in ("k 3", "") else text),
    ],
    ids=["by the rule", "text", "missing texts"],
)
def test_rows_to_score_have_their_histories_as_lists(tmp_path, kind, value):
    lines = random_log(1)
    write(tmp_path / "log", lines, 1)
    columns = COLUMNS | {"features": {"kind": kind}}
    data = prepared(tmp_path / "log/0.csv", tmp_path / "out", columns, split="none")
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    past = expected(lines, False, value)
    rows = {n: [line[n] for line in lines] for n in ("item", "kind")}
    lists = {n: [history[n] for history in past] for n in past[0]}
    text = {n: [";".join(v or "" for v in bag) for bag in lists[n]] for n in lists}
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*rows, *text])
        writer.writerows(zip(*rows.values(), *text.values(), strict=True))
    (batch,) = data.in_file_order("train", 999)
    encoder = RowEncoder(tmp_path / "run")
    for given in (rows | lists, tmp_path / "rows.csv"):
        ((scored, _),) = encoder.batches(given)
        for name in batch.ids:
            np.testing.assert_array_equal(
                np.asarray(scored.ids[name]), np.asarray(batch.ids[name])
            )
    unlike = {
        "past_item": [["i1"]] * len(lines),
        "past_kind": [["a", "b"]] * len(lines),
    }
    with pytest.raises(DataError, match="events have 1 of past_item, 2 of past_kind"):
        list(encoder.batches(rows | unlike))


@pytest.mark.parametrize("positive", [False, True])
def test_rows_to_score_take_their_histories_from_a_log(tmp_path, positive):
    lines, files = random_log(4), 3
    write(tmp_path / "log", lines, files)
    columns = COLUMNS | {"history": HISTORY | {"positive": positive}}
    log = (tmp_path / "log").rename(tmp_path / "log.csv")
    data = prepared(log, tmp_path / "out", columns, split="none")
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    users = ["u3", "", "u1", "nobody", "u1", " u2"]
    later = [{"user": u.strip(), "label": "0", "when": "2025-01-01"} for u in users]
    later = [line | {"item": "i1", "kind": "7.00"} for line in later]
    in_order = [line for number in range(files) for line in lines[number::files]]
    past = expected([*in_order, *later], positive)[-len(users) :]
    assert any(each["past_item"] for each in past)
    rows = {"item": ["i1"] * len(users), "kind": ["7.00"] * len(users)}
    lists = {n: [history[n] for history in past] for n in past[0]}
    ((batch, _),) = RowEncoder(tmp_path / "run").batches(rows | lists)
    encoder = RowEncoder(tmp_path / "run")
    encoder.read_log(log)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", *rows])
        writer.writerows(zip(users, *rows.values(), strict=True))
    for given in (rows | {"user": users}, tmp_path / "rows.csv"):
        ((found, _),) = encoder.batches(given)
        for name in batch.ids:
            np.testing.assert_array_equal(
                np.asarray(found.ids[name]), np.asarray(batch.ids[name])
            )
    with pytest.raises(DataError, match="has no column 'user'"):
        list(encoder.batches(rows))


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
    lines = random_log(0)
    write(tmp_path / "log", lines, 1)
    data = prepared(tmp_path / "log/0.csv", tmp_path / "out", COLUMNS, split="none")
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    write(tmp_path / "more", random_log(1), 1)  # which has dates
    (tmp_path / "more/0.csv").rename(tmp_path / "log/1.csv")
    with pytest.raises(DataError, match="log: column when: has dates and whole"):
        RowEncoder(tmp_path / "run").read_log(tmp_path / "log")


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
    write(tmp_path / "log", random_log(1), 1)
    with pytest.raises((DataError, ValidationError), match=message):
        prepared(tmp_path / "log/0.csv", tmp_path / "out", COLUMNS | change)


def test_rows_without_histories_are_told_what_to_bring(tmp_path):
    lines = random_log(1)
    write(tmp_path / "log", lines, 1)
    data = prepared(tmp_path / "log/0.csv", tmp_path / "out", COLUMNS, split="none")
    save_encoding(data.folder, data.manifest, tmp_path / "run/encoding")
    encoder = RowEncoder(tmp_path / "run")
    message = "no column 'past_item'; it has the earlier events of the row's user, the"
    for rows in (tmp_path / "log/0.csv", {"item": ["i1"], "kind": ["k 3"]}):
        with pytest.raises(DataError, match=message):
            list(encoder.batches(rows))


def test_a_full_disk_is_said_before_a_page_of_it_is_missing(tmp_path, monkeypatch):
    """What is written by mapped pages must have its place: else the process ends."""
    write(tmp_path / "raw", random_log(0), files=1)

    def no_room(file, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match=r"No space left on device: '.*out.part.*'"):
        prepared(tmp_path / "raw" / "0.csv", tmp_path / "out", COLUMNS)
