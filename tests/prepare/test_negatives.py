"""Negatives of a log, beside what loops in plain Python draw."""

from collections import Counter

import numpy as np
import pytest

from embark_jax.data import DataError
from embark_jax.prepare import encode
from tests.prepare.raw_files import prepared, samples, write_table
from tests.thorough import thorough

BITS = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def splitmix64(counter: int) -> int:
    """As in https://prng.di.unimi.it/splitmix64.c."""
    bits = (counter ^ (counter >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & BITS
    return bits ^ (bits >> 31)


def random_log(seed: int, labels: bool) -> list[dict]:
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(int(rng.integers(30, 90))):
        item = int(rng.zipf(1.5)) % 12
        line = {"user": f"u{rng.integers(9)}", "item": f"i{item}", "when": i // 2}
        line |= {"kind": f"k{item % 3}" if item % 4 else "", "price": item / 4}
        lines.append(line | ({"label": int(rng.integers(2))} if labels else {}))
    return lines


def expected(lines: list[dict], columns: dict, trains: int) -> list[dict]:
    """All samples, in order; the first ``trains`` lines are those of training."""
    drawn, count = columns["negatives"], columns["negatives"]["count"]
    counts = Counter(x["item"] for x in lines[:trains] if x.get("label", 1))
    last = {x["item"]: x for x in lines[:trains] if x.get("label", 1)}
    weight = counts if drawn["by"] == "popularity" else dict.fromkeys(counts, 1)
    stream, found = splitmix64((drawn["seed"] + 1) * GAMMA & BITS), []
    for row, line in enumerate(lines):
        found.append(line | {"label": line.get("label", 1)})
        out = {line["item"]}
        if drawn["unseen"]:
            out = {x["item"] for x in lines if x["user"] == line["user"]}
        urn = [i for i in sorted(counts) if i not in out for _ in range(weight[i])]
        for k in range(count if line.get("label", 1) else 0):
            number = row * count + k
            item = urn[splitmix64((stream + number * GAMMA) & BITS) % len(urn)]
            of_item = {name: last[item][name] for name in ("item", "kind", "price")}
            found.append(line | of_item | {"label": 0})
    return found


@pytest.mark.parametrize("seed", thorough(range(12), (0, 2, 4, 5, 7)))
def test_negatives_are_those_of_python(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(encode, "CHUNK_ROWS", 17)
    lines, has_labels = random_log(seed, seed % 2 > 0), seed % 2 > 0
    negatives = {
        "item": "item",
        "columns": ["kind", "price"],
        "count": 1 + seed % 3,
        "by": ["uniform", "popularity"][seed // 2 % 2],
        "unseen": seed // 4 % 2 > 0,
        "seed": seed,
    }
    columns = {
        "user": "user",
        "time": "when",
        "dense": {"price": "none"},
        "negatives": negatives,
        "history": {"columns": ["item"], "longest": 3},
    }
    columns |= {} if has_labels else {"label": None}
    path = write_table(tmp_path / "log.csv", lines)
    data = prepared(path, tmp_path / "out", columns, split="none")
    found, wanted = samples(data, "train"), expected(lines, columns, len(lines))
    assert data.manifest.negatives == len(wanted) - len(lines)
    for sample, line in zip(found, wanted, strict=True):
        assert sample["label"] == line["label"]
        assert (sample["user"], sample["item"]) == (line["user"], line["item"])
        assert sample["kind"] == (line["kind"] or None)
        assert sample["dense price"] == line["price"]
        before = [
            x["item"]
            for x in lines
            if x["user"] == line["user"] and x["when"] < line["when"]
        ]
        assert sample["past_item"] == before[-3:]


def test_held_out_samples_have_negatives_of_training_items(tmp_path):
    lines = random_log(3, False)
    columns = {"user": "user", "time": "when", "label": None}
    drawn = {"item": "item", "count": 2, "by": "uniform", "unseen": False, "seed": 0}
    columns |= {"negatives": drawn, "dense": {"price": "none"}}
    path = write_table(tmp_path / "log.csv", lines)
    data = prepared(path, tmp_path / "out", columns, split="time")
    for split in ("train", "validation", "test"):
        labels = [sample["label"] for sample in samples(data, split)]
        assert labels == [1, 0, 0] * (len(labels) // 3)


def test_a_user_who_has_seen_everything_is_refused(tmp_path):
    lines = [{"user": "u", "item": f"i{i}"} for i in range(3)]
    path = write_table(tmp_path / "log.csv", lines)
    columns = {"user": "user", "label": None}
    drawn = {"item": "item", "unseen": True}
    with pytest.raises(DataError, match="a user has seen all of the 3 items"):
        prepared(path, tmp_path / "out", columns | {"negatives": drawn}, split="none")
    with pytest.raises(DataError, match="negatives: 'itm' is no column; did you mean"):
        prepared(path, tmp_path / "o", columns | {"negatives": {"item": "itm"}})
