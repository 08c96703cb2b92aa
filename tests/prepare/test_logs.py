"""Random logs, prepared and scored, beside what plain Python makes of them."""

import csv
import datetime
import gzip
import hashlib
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from embark_jax._base.files import read_arrow
from embark_jax.data import DataError, PreparedData
from embark_jax.data.encoding import save_encoding
from embark_jax.prepare import encode, histories
from embark_jax.prepare.raw_rows import RowEncoder
from tests.prepare.raw_files import prepared, value, write_table
from tests.thorough import thorough

ODD = ["007", "7", "7.0", "é", "e\u0301", "NA", "-5", str(2**63), "a,b", 'q"', " pad"]
ODD += ["two\nlines", "1e-05", "0.00001", "true", "TRUE", "x" * 300, "'; --", "%", "i1"]
BITS, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15
SPLITS = ("train", "validation", "test")
NAMES = ("user", "item", "kind", "hour", "tags", "scores", "price")
PAST = ("item", "kind")


def moment(form: int, time: int, zone: int) -> str:
    """A time in one of the forms that logs have."""
    if form < 3:
        return [f"{time}", f"{2**62 + time}", f"{time / 4:.2f}"][form]
    at = datetime.datetime(2024, 2, 10) + datetime.timedelta(hours=time)
    if form == 3:
        return f"{at}"
    return f"{at + datetime.timedelta(hours=zone)}{zone:+03}:00"


def random_log(seed: int) -> list[dict[str, Any]]:
    """Lines with ties in time, users of one event, odd and missing values."""
    draw = random.Random(seed)
    some = {n: [*draw.choices(ODD, k=6), "", f"{n}1", f"{n}2"] for n in NAMES[:3]}
    some["item"] += [f"item{number}" for number in range(30)]
    lines = []
    for _ in range(draw.randint(25, 90)):
        tags = draw.choices(["p", "07", "7", "NA"], k=draw.randint(0, 3))
        time = draw.randint(0, 15)
        lines.append(
            {name: draw.choice(values) for name, values in some.items()}
            | {"label": f"{draw.randint(0, 1)}", "hour": draw.choice(["", "01", "2"])}
            | {"tags": ";".join(tags)}
            | {"scores": ";".join(f"{draw.randint(-8, 8) / 4}" for _ in tags)}
            | {"price": draw.choice(["", f"{draw.uniform(-5, 5):.3f}"])}
            | {"when": moment(seed % 5, time, draw.randint(-5, 5)), "time": time}
        )
    return lines


def write(folder: Path, lines: list[dict[str, Any]], files: int) -> Path:
    """CSV files with columns in several orders, the last of several compressed."""
    folder.mkdir(parents=True)
    for number in range(files):
        names = sorted(lines[0].keys() - {"time"}, reverse=number > 0)
        path = folder / f"{number}.csv"
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(lines[number::files])
    if files > 1:
        (folder / f"{number}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


class Case(NamedTuple):
    """What is asked for: of histories, negatives, split, counts, texts and hashes."""

    history: dict[str, Any]
    negatives: dict[str, Any] | None
    split: str
    min_count: int
    text: bool
    hashed: bool

    @classmethod
    def of(cls, seed: int) -> "Case":
        draw = random.Random(seed + 1)
        history = {"columns": PAST, "longest": draw.choice([1, 3, 6])}
        history |= {name: draw.random() < 0.5 for name in ("ties", "positive")}
        history["least"] = draw.choice([0, 0, 1])
        negatives = {"item": "item", "columns": ["kind"], "count": draw.randint(1, 2)}
        negatives |= {"by": draw.choice(["uniform", "popularity"]), "seed": seed}
        negatives["unseen"] = draw.random() < 0.5
        split = draw.choice(["none", "leave-one-out", "random=0.3"])
        chosen = negatives if draw.random() < 0.5 else None
        text, hashed = draw.random() < 0.4, chosen is None and draw.random() < 0.5
        return cls(history, chosen, split, draw.choice([1, 2]), text, hashed)

    @property
    def columns(self) -> dict[str, Any]:
        texts = {name: {"text": True} for name in ("user", *PAST) if self.text}
        columns = {"user": "user", "time": "when", "dense": {"price": "none"}}
        columns |= {"features": {"tags": {"separator": ";"}, **texts}}
        columns |= {"weights": {"tags": "scores"}, "history": self.history}
        if self.negatives is not None:
            return columns | {"negatives": self.negatives}
        return columns | {"cross": {"both": ["kind", "hour"]}}


def splitmix64(counter: int) -> int:
    """As in https://prng.di.unimi.it/splitmix64.c."""
    bits = (counter ^ (counter >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & BITS
    return bits ^ (bits >> 31)


class Expected:
    """What becomes of lines, which are in the order of the files.

    Attributes:
      values: the values of each feature, by line.
      past: the lines of the history of each line.
      split: the split of each line.
      of_user: the events of each user, with their times.
    """

    def __init__(self, lines: list[dict[str, Any]], case: Case):
        self.case = case
        one = {n: [self.value(n, line[n]) for line in lines] for n in NAMES[:4]}
        self.users = one["user"]
        self.values = {name: [[each] for each in of] for name, of in one.items()}
        self.values["tags"] = [
            [value(tag) for tag in line["tags"].split(";")] if line["tags"] else []
            for line in lines
        ]
        self.values["both"] = [
            [None if None in pair else "\x1f".join(pair)]
            for pair in zip(one["kind"], one["hour"], strict=True)
        ]
        self.labels = [float(line["label"]) for line in lines]
        self.places = [(line["time"], row) for row, line in enumerate(lines)]
        self.of_user, self.all_of_user = defaultdict(list), defaultdict(list)
        for place, user, label in zip(
            self.places, self.users, self.labels, strict=True
        ):
            if user is not None:
                self.all_of_user[user].append(place)
                if label or not case.history["positive"]:
                    self.of_user[user].append(place)
        self.past = [self.history(place) for place in self.places]
        self.split = [self.random_split(row) for row in range(len(lines))]
        for events in self.all_of_user.values():
            if case.split == "leave-one-out" and len(events) >= 3:
                *_, (_, validation), (_, test) = sorted(events)
                self.split[validation], self.split[test] = 1, 2
        trains = [row for row, split in enumerate(self.split) if not split]
        self.counts = {
            name: Counter(v for row in trains for v in bags[row] if v is not None)
            for name, bags in self.values.items()
        }
        item = {r: one["item"][r] for r in trains if self.labels[r] and one["item"][r]}
        self.last = {of: row for row, of in item.items()}
        self.urn = Counter(item.values())

    def value(self, name: str, text: str) -> str | None:
        return (text or None) if self.case.text and name != "hour" else value(text)

    def history(self, place: tuple[int, int]) -> list[int]:
        (time, row), history = place, self.case.history
        until = (time, row if history["ties"] else -1)
        events = sorted(e for e in self.of_user[self.users[row]] if e < until)
        return [other for _, other in events[-history["longest"] :]]

    def random_split(self, row: int) -> int:
        digest = hashlib.md5(f"{row}".encode()).digest()[8:]
        number = int.from_bytes(digest, "little") % 10**6
        is_random = self.case.split.startswith("random")
        return (2 if number < 150_000 else number < 300_000) if is_random else 0

    def is_sample(self, row: int) -> bool:
        before = [e for e in self.all_of_user[self.users[row]] if e < self.places[row]]
        return len(before) >= self.case.history["least"]

    def drawn(self, row: int) -> list[int]:
        """The lines whose items and kinds the negatives of a line have."""
        drawn, found, user = self.case.negatives, [], self.users[row]
        if drawn is None or not self.labels[row]:
            return []
        out = {*self.values["item"][row]}
        if drawn["unseen"] and user is not None:
            out |= {
                self.values["item"][other][0] for _, other in self.all_of_user[user]
            }
        is_uniform = drawn["by"] == "uniform"
        urn = [
            item
            for item in sorted(self.urn, key=str.encode)
            if item not in out
            for _ in range(1 if is_uniform else self.urn[item])
        ]
        stream = splitmix64((drawn["seed"] + 1) * GAMMA & BITS)
        for k in range(drawn["count"]):
            number = (row * drawn["count"] + k) * GAMMA
            found.append(
                self.last[urn[splitmix64((stream + number) & BITS) % len(urn)]]
            )
        return found

    def known(self, name: str) -> list[str]:
        """The values of a vocabulary: the frequent ones, in order."""
        counts = self.counts[name]
        in_order = sorted(counts, key=lambda v: (-counts[v], v.encode()))
        return [v for v in in_order if counts[v] >= self.case.min_count]

    def ids(self, name: str, values: list[str | None]) -> list[int]:
        if name == "both" and self.case.hashed:
            texts = [v and hashlib.md5(v.encode()).digest()[8:] for v in values]
            numbers = [t and 1 + int.from_bytes(t, "little") % 49 for t in texts]
            return [number or 0 for number in numbers]
        table = {v: 2 + place for place, v in enumerate(self.known(name))}
        return [0 if v is None else table.get(v, 1) for v in values]

    def ids_of(self, name: str, rows: list[int]) -> list[int]:
        return self.ids(name, [self.values[name][row][0] for row in rows])


def bag(ids: Any) -> list[int]:
    return [i for i in np.asarray(ids).tolist() if i >= 0]


def check_samples(data: PreparedData, lines: list, expected: Expected) -> list[dict]:
    """Compares all samples; returns the ids of each line that is one."""
    for file in (data.folder / "vocabulary").iterdir():
        assert read_arrow(file)["key"].to_pylist() == expected.known(file.stem)
    ids_of: list[dict] = [{} for _ in lines]
    for number, split in enumerate(SPLITS):
        rows = [r for r in range(len(lines)) if expected.split[r] == number]
        samples = [
            (row, of)
            for row in filter(expected.is_sample, rows)
            for of in (None, *expected.drawn(row))
        ]
        batches = list(data.in_file_order(split, 1000))
        assert sum(map(len, batches)) == len(samples)
        for place, (row, of) in enumerate(samples):
            (batch,), item = batches, row if of is None else of
            ids = {name: bag(each[place]) for name, each in batch.ids.items()}
            for name in data.table_rows:
                values = expected.values[name][item if name in PAST else row]
                assert ids[name] == expected.ids(name, values), (row, name)
            for name in PAST:
                assert ids[f"past_{name}"] == expected.ids_of(name, expected.past[row])
            assert batch.labels[place] == (of is None and expected.labels[row])
            scores = [
                float(score) for score in lines[row]["scores"].split(";") if score
            ]
            found = np.asarray(batch.weights["tags"])[place, : len(scores)]
            assert found.tolist() == scores
            assert batch.dense[place, 0] == np.float32(lines[row]["price"] or 0)
            if of is None:
                ids_of[row] = ids
    return ids_of


@pytest.mark.filterwarnings("ignore:column .*training did not know")
@pytest.mark.parametrize("seed", thorough(range(60), range(15)))
def test_logs_become_what_python_makes_of_them(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(histories, "FILE_EVENTS", 17)
    monkeypatch.setattr(encode, "CHUNK_ROWS", 23)
    lines, case, files = random_log(seed), Case.of(seed), 1 + seed % 3
    log = write(tmp_path / "log.csv", lines, files)
    lines = [line for number in range(files) for line in lines[number::files]]
    expected = Expected(lines, case)
    options: dict[str, Any] = {"split": case.split, "min_count": case.min_count}
    options["hash_columns"] = {"both": 50} if case.hashed else {}
    data = prepared(log, tmp_path / "out", case.columns, **options)
    ids = check_samples(data, lines, expected)

    # Rows that bring their histories, and rows of users that a log gives them.
    save_encoding(data.folder, data.manifest, tmp_path / "run" / "encoding")
    rows = [row for row, of in enumerate(ids) if of]
    given = {name: [lines[row][name] for row in rows] for name in NAMES}
    for name in PAST:
        given[f"past_{name}"] = [
            [lines[other][name] for other in expected.past[row]] for row in rows
        ]
    ((batch, _),) = RowEncoder(tmp_path / "run").batches(given)
    for place, row in enumerate(rows):
        found = {name: bag(each[place]) for name, each in batch.ids.items()}
        assert found == ids[row]
    encoder = RowEncoder(tmp_path / "run")
    encoder.read_log(log)
    ((batch, _),) = encoder.batches({name: given[name] for name in NAMES})
    for place, row in enumerate(rows):
        events = sorted(expected.of_user[expected.users[row]])
        for name in PAST:
            past = [other for _, other in events[-case.history["longest"] :]]
            found = bag(batch.ids[f"past_{name}"][place])
            assert found == expected.ids_of(name, past)


def test_a_user_who_has_seen_everything_is_refused(tmp_path):
    lines = [{"user": "u", "item": f"i{i}"} for i in range(3)]
    path = write_table(tmp_path / "log.csv", lines)
    columns = {"user": "user", "label": None}
    drawn = {"item": "item", "unseen": True}
    with pytest.raises(DataError, match="a user has seen all of the 3 items"):
        prepared(path, tmp_path / "out", columns | {"negatives": drawn}, split="none")
    with pytest.raises(DataError, match="negatives: 'itm' is no column; did you mean"):
        prepared(path, tmp_path / "o", columns | {"negatives": {"item": "itm"}})


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
    columns = {"features": {"tags": {"separator": ";"}}, "weights": {"tags": "scores"}}
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path / "out", columns, split="none")
    columns["weights"] = {"tag": "scores"}
    with pytest.raises(DataError, match=r"weights\.tag: is no feature; did you mean"):
        prepared(path, tmp_path / "o", columns, split="none")


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ({"user": ["user", "hour"]}, "column 'user' is there, and a cross, too"),
        ({"x": ["user", "our"]}, "cross.x: 'our' is no feature of .*did you mean"),
    ],
)
def test_crosses_that_cannot_be(tmp_path, cross, message):
    path = write_table(tmp_path / "rows.csv", [{"label": 1, "user": "a", "hour": 1}])
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path / "out", {"cross": cross})
