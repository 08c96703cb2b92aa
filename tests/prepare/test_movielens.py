"""MovieLens-100k by its recipes, beside what plain Python makes of files like its."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from embark_jax.data import DataError, PreparedData
from embark_jax.data.columns import Columns
from embark_jax.prepare import movielens
from tests.prepare.raw_files import everything, prepared_by, samples, sizes

USERS = """\
user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token
11\t24\tM\twriter\t85711
12\t53\tF\tother\t94043
13\t24\tF\twriter\t85711
"""
ITEMS = """\
item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq
5\tToy Story\t1995\tAnimation Children's Comedy
6\tFour Rooms\t1995\tThriller
7\tFour Toy Boys\tunkonwn\tDrama Comedy
"""
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
START = 881250949


def write(folder: Path, ratings: int = 60) -> list[dict[str, int]]:
    rng = np.random.default_rng(0)
    rows = rng.integers([11, 5, 1, START], [14, 9, 6, START + 25], (ratings, 4))
    lines = [HEADER, *("\t".join(map(str, row)) for row in rows.tolist())]
    texts = {"inter": "\n".join(lines) + "\n", "user": USERS, "item": ITEMS}
    for kind, text in texts.items():
        (folder / f"ml-100k.{kind}").write_text(text)
    names = ("user", "item", "rating", "time")
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def columns(of: dict, **changes) -> Columns:
    return Columns.model_validate(of | changes)


def table(text: str) -> dict[str, list[str]]:
    return {row[0]: row for row in csv.reader(text.splitlines()[1:], delimiter="\t")}


def test_samples_say_what_lines_say(tmp_path):
    """Film 8 is in no file of films."""
    lines, users, items = write(tmp_path), table(USERS), table(ITEMS)
    past = {"columns": ["item_id"], "longest": 4}
    labels = {"like": {"column": "rating"}}
    labels["love"] = {"column": "rating", "positive_from": 5}
    described = columns(movielens.COLUMNS, history=past)
    recipe = movielens.movielens_100k(tmp_path, described)
    data = prepared_by(recipe, tmp_path / "out", split="none")
    for place, (sample, line) in enumerate(
        zip(samples(data, "train"), lines, strict=True)
    ):
        user, item = users[str(line["user"])], items.get(str(line["item"]))
        assert sample["label"] == (line["rating"] >= 4)
        names = ("user_id", "age", "gender", "occupation", "zip_code")
        assert [sample[name] for name in names] == user
        assert sample["item_id"] == str(line["item"])
        _, title, year, genres = item or (None, "", None, "")
        assert sample["movie_title"] == title.split()
        assert (sample["release_year"], sample["class"]) == (year, genres.split())
        before = [
            (other["time"], at)
            for at, other in enumerate(lines)
            if other["user"] == line["user"] and other["time"] < line["time"]
        ]
        seen = [str(lines[at]["item"]) for _, at in sorted(before)][-4:]
        assert sample["past_item_id"] == seen, place
    times = np.array([line["time"] for line in lines])
    found = [sample["dense timestamp"] for sample in samples(data, "train")]
    np.testing.assert_allclose(found, (times - times.mean()) / times.std(), rtol=1e-4)

    described = columns(movielens.COLUMNS, labels=labels)
    recipe = movielens.movielens_100k(tmp_path, described)
    data = prepared_by(recipe, tmp_path / "labels", split="none")
    assert data.manifest.labels == ("like", "love")
    (batch,) = data.in_file_order("train", 99)
    stars = np.array([line["rating"] for line in lines])
    np.testing.assert_array_equal(batch.labels, np.stack([stars >= 4, stars >= 5], 1))


@pytest.mark.parametrize("every", [1, 3])
def test_the_last_films_of_each_user_are_held_out(tmp_path, every):
    lines, of_user = write(tmp_path), defaultdict(list)
    for line in sorted(lines, key=lambda line: line["time"]):
        of_user[line["user"]].append(str(line["item"]))
    history = movielens.NEXT_COLUMNS["history"] | {"longest": 5, "every": every}
    described = columns(movielens.NEXT_COLUMNS, history=history)
    recipe = movielens.movielens_100k(tmp_path, described)
    data = prepared_by(recipe, tmp_path / "out", split="leave-one-out")

    def expected(ends) -> list:
        return sorted(
            (films[max(0, end - 5) : end], films[end])
            for films in of_user.values()
            for end in ends(len(films))
        )

    def found(split: str) -> list:
        return sorted((s["past_item_id"], s["item_id"]) for s in samples(data, split))

    assert found("test") == expected(lambda films: [films - 1])
    assert found("validation") == expected(lambda films: [films - 2])
    assert found("train") == expected(lambda films: range(films - 3, 0, -every))


def test_a_side_file_that_says_a_key_twice_is_refused(tmp_path):
    write(tmp_path)
    with (tmp_path / "ml-100k.item").open("a") as file:
        file.write("5\tToy Story\t1995\tComedy\n")
    recipe = movielens.movielens_100k(tmp_path, columns(movielens.COLUMNS))
    with pytest.raises(DataError, match=r"ml-100k.item: item_id '5' has 2 lines"):
        prepared_by(recipe, tmp_path / "out")


def test_the_real_data(movielens):
    data = PreparedData(movielens())
    assert abs(data.train_samples - 80_000) < 300
    assert sum(sizes(data)) == 100_000
    # Counts of the README of the data set: https://files.grouplens.org/datasets/movielens
    # /ml-100k-README.txt
    rows = data.table_rows
    assert (rows["user_id"], rows["gender"]) == (2 + 943, 2 + 2)
    assert (rows["occupation"], rows["class"]) == (2 + 21, 2 + 19)
    liked = sum(sample["label"] for sample in everything(data))
    assert liked == 34_174 + 21_201  # ratings of 4 and of 5 stars
