"""Splits of a log, beside what plain Python makes of the same lines."""

import numpy as np
import pytest

from embark_jax._base.config import ConfigError
from embark_jax.data import DataError
from tests.prepare.raw_files import prepared, sizes, write_table
from tests.runs import done

NAMES = ("train", "validation", "test")
COLUMNS = {"user": "user", "time": "when", "dense": {"place": "none"}}


def log(seed: int = 0, count: int = 300) -> list[dict]:
    """Lines with ties in time, and users of one event, or of none."""
    rng = np.random.default_rng(seed)
    return [
        {
            "label": 1,
            "user": "" if user == 5 else f"u{user}",
            "place": place,
            "when": f"2024-03-{1 + int(rng.integers(20)):02} 08:00:00",
        }
        for place, user in enumerate(rng.zipf(1.3, count) % 40)
    ]


def split_lines(data) -> dict[str, list[int]]:
    """The places of the lines in each split."""
    return {
        name: sorted(
            int(place)
            for batch in data.in_file_order(name, 99)
            for place in batch.dense[:, 0]
        )
        for name in NAMES
    }


def test_dates_and_shares_of_time(tmp_path):
    lines = log()
    path = write_table(tmp_path / "log.csv", lines)
    two = prepared(
        path, tmp_path / "a", COLUMNS, split="time=2024-03-11,2024-03-16 08:00:00"
    )
    days = {line["place"]: line["when"] for line in lines}
    begins = {"train": "2024-03-01", "validation": "2024-03-11", "test": "2024-03-16"}
    ends = [*list(begins.values())[1:], "9"]
    for (name, begin), end in zip(begins.items(), ends, strict=True):
        mine = [place for place, day in days.items() if begin <= day < end]
        assert split_lines(two)[name] == mine
    one = prepared(path, tmp_path / "b", COLUMNS, split="time=2024-03-11")
    places = split_lines(one)
    assert places["validation"] == []
    assert places["train"] == split_lines(two)["train"]
    share = prepared(path, tmp_path / "c", COLUMNS, split="time=0.4")
    places = split_lines(share)
    latest = max(days[place] for place in places["train"])
    assert all(days[p] > latest for p in places["validation"] + places["test"])
    assert len(places["train"]) == pytest.approx(0.6 * len(lines), abs=20)


def test_users_and_random_shares(tmp_path):
    lines = log(count=4000)
    path = write_table(tmp_path / "log.csv", lines)
    places = split_lines(prepared(path, tmp_path / "a", COLUMNS, split="user=0.5"))
    users = [{lines[place]["user"] for place in places[name]} for name in NAMES]
    assert users[0] & users[1] <= {""}
    assert not users[1] & users[2]
    assert not users[0] & users[2]
    assert "" in users[0]  # lines without a user
    assert all(users)
    data = prepared(path, tmp_path / "b", COLUMNS, split="random=0.4")
    deviation = (4000 * 0.4 * 0.6) ** 0.5
    assert abs(sizes(data)[0] - 2400) < 4 * deviation
    assert abs(sizes(data)[1] - 800) < 4 * deviation


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("weekly", "must be one of time, random, user, leave-one-out, column=NAME"),
        ("random=2", "take a share from 0 to 1"),
        ("none=0.1", "must be one of"),
        ("time=soon", "time=soon: must be a date"),
        ("time=17", "time=17: must be a date"),
    ],
)
def test_splits_that_cannot_be(tmp_path, split, message):
    path = write_table(tmp_path / "log.csv", log(count=20))
    with pytest.raises((ConfigError, DataError), match=message):
        prepared(path, tmp_path / "out", COLUMNS, split=split)
    if split == "weekly":
        for by in ("user", "leave-one-out"):
            with pytest.raises(DataError, match="needs the column of users: user="):
                prepared(path, tmp_path / "out", {"time": "when"}, split=by)


def test_a_small_training_set_is_said(tmp_path):
    path = write_table(tmp_path / "log.csv", log())
    call = ("data", "prepare", "csv", "--raw", path, "time=when", "ignore=[place]")
    told = done(*call, "split=time=2024-03-03", "--out", tmp_path / "out").out
    assert "warning: training has" in told
