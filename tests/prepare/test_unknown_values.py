"""Values that training never saw: their share is told, and their row may be trained."""

from collections import Counter

import numpy as np
import pytest

from embark_jax.data.vocabulary import FIRST_ID, RARE_ID
from tests.prepare.raw_files import prepared, write_table
from tests.runs import done

COLUMNS = {
    "split": "column=fold",
    "time": "when",
    "features": {"tags": {"separator": "|"}},
}
FOLDS = {"train": "train", "valid": "validation", "test": "test"}


@pytest.fixture
def rows() -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "label": int(rng.integers(2)),
            "user": f"u{rng.zipf(1.3) % 200}" if i % 11 else "",
            "tags": "|".join(f"t{tag}" for tag in rng.zipf(1.4, 3) % 90),
            "when": f"2024-03-{1 + i // 100:02} 10:00:00",
            "fold": ["train", "train", "valid", "test"][i % 4],
        }
        for i in range(1600)
    ]


def share_of(rows: list[dict]) -> float:
    """The share of users in the test set that training never saw."""
    seen = {row["user"] for row in rows if row["fold"] == "train"}
    users = [row["user"] for row in rows if row["fold"] == "test" and row["user"]]
    return sum(user not in seen for user in users) / len(users)


@pytest.mark.parametrize("min_count", [1, 3])
def test_the_share_is_that_of_python(rows, tmp_path, min_count):
    path = write_table(tmp_path / "rows.csv", rows)
    data = prepared(path, tmp_path / "out", COLUMNS, split="time", min_count=min_count)
    for name in ("user", "tags"):
        bags = [
            (row["fold"], [value for value in row[name].split("|") if value])
            for row in rows
        ]
        seen = Counter(v for fold, bag in bags if fold == "train" for v in bag)
        for fold in ("valid", "test"):
            values = [v for of, bag in bags if of == fold for v in bag]
            share = sum(seen[v] < min_count for v in values) / len(values)
            told = data.manifest.splits[FOLDS[fold]].unknown.get(name, 0)
            assert told == pytest.approx(share, abs=1e-4)
    for fold, split in FOLDS.items():
        times = sorted(row["when"] for row in rows if row["fold"] == fold)
        assert data.manifest.splits[split].times == (times[0], times[-1])


def test_a_share_of_values_trains_the_row_of_unknown_ones(rows, tmp_path):
    path = write_table(tmp_path / "rows.csv", rows)
    whole, some = (
        prepared(path, tmp_path / f"{share}", COLUMNS, split="time", unseen=share)
        for share in (0.0, 0.1)
    )
    assert some.manifest.tables == whole.manifest.tables  # counts of all values
    for split in ("validation", "test"):
        for one, other in zip(
            whole.in_file_order(split, 999), some.in_file_order(split, 999), strict=True
        ):
            for name in whole.manifest.features:
                np.testing.assert_array_equal(one.ids[name], other.ids[name])
    (one,), (other,) = (data.in_file_order("train", 9999) for data in (whole, some))
    for name in whole.manifest.features:
        before, after = np.asarray(one.ids[name]), np.asarray(other.ids[name])
        there = before >= FIRST_ID
        assert (after[~there] == before[~there]).all()
        dropped = after[there] != before[there]
        assert (after[there][dropped] == RARE_ID).all()
        deviation = (0.1 * 0.9 / there.sum()) ** 0.5
        assert abs(dropped.mean() - 0.1) < 4 * deviation


def test_the_command_says_the_share(rows, tmp_path):
    path = write_table(tmp_path / "rows.csv", rows)
    keys = ("split=column=fold", "time=when", "others=false", "features.user={}")
    call = ("data", "prepare", "csv", "--raw", path, *keys)
    told = done(*call, "--out", tmp_path / "a").out
    share = share_of(rows)
    assert f"column 'user': {share:.1%} of the values in test have no row" in told
    assert "unseen=0.01 trains it" in told
    assert "test: from 2024-03-01 10:00:00 to 2024-03-16 10:00:00" in told
    told = done(*call, "--out", tmp_path / "b", "unseen=0.01").out
    assert "unseen=0.01" not in told
