import itertools

import numpy as np
import pytest

from embark_jax.data import BatchChecker, DataError
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare.movielens import MovieLens100K
from tests.data.movielens_files import HEADER, ITEMS, RATINGS, USERS, folder_of


def open_tiny(folder, seed=0):
    return MovieLens100K(folder, seed=seed, ratings=RATINGS)


@pytest.fixture
def tiny(tmp_path):
    return open_tiny(folder_of(tmp_path))


def line_of(batch, i):
    name, line = batch.locate(i).split(", line ")
    assert name == "ml-100k.inter"
    return int(line)


def lines_of(batches):
    return [line_of(batch, i) for batch in batches for i in range(len(batch))]


def test_every_sample_says_what_its_line_says(tiny, tmp_path):
    lines = (tmp_path / "ml-100k.inter").read_text().split("\n")
    users = {line.split("\t")[0]: line.split("\t") for line in USERS.split("\n")[1:]}
    # In order of first appearance, by hand.
    user_ids = {"11": [0, 0, 0, 0, 0], "12": [1, 1, 1, 1, 1], "13": [2, 0, 1, 0, 0]}
    item_ids = {"5": [0, 0], "6": [1, 0], "7": [2, 1]}
    genres = {"5": [0, 1, 2], "6": [3, -1, -1], "7": [4, 2, -1]}
    words = {"5": [0, -1, -1], "6": [1, 2, -1], "7": [1, 0, 2]}  # toy, four, rooms
    titles = {
        line.split("\t")[0]: line.split("\t")[1] for line in ITEMS.splitlines()[1:]
    }
    times = []
    for batch in (tiny.train_batch(0, 24), *tiny.test_batches(2)):
        for i in range(len(batch)):
            user, item, stars, time = lines[line_of(batch, i) - 1].split("\t")
            ids = {name: values[i].tolist() for name, values in batch.ids.items()}
            names = ("user", "age", "gender", "occupation", "zip_code")
            assert [ids[name] for name in names] == [[id_] for id_ in user_ids[user]]
            assert [ids["item"], ids["release_year"]] == [[k] for k in item_ids[item]]
            assert ids["genres"] == genres[item]
            assert ids["title_words"] == words[item]
            assert tiny.titles[ids["item"][0]] == titles[item]
            assert batch.labels[i] == (int(stars) >= 4)
            times.append((float(users[user][1]), float(time), *batch.dense[i]))
    # The dense features are one increasing linear map of age and time.
    age, time, dense_age, dense_time = np.array(times).T
    for raw, standard in ((age, dense_age), (time, dense_time)):
        np.testing.assert_allclose(np.corrcoef(raw, standard)[0, 1], 1, rtol=1e-5)
    np.testing.assert_allclose(
        [dense_age[:24].mean(), dense_time[:24].mean()], 0, atol=1e-6
    )
    np.testing.assert_allclose(
        [dense_age[:24].std(), dense_time[:24].std()], 1, rtol=1e-5
    )


def test_earlier_items_are_those_the_user_rated_before(tmp_path):
    rng = np.random.default_rng(0)
    rated = [
        (*rng.integers([11, 5], [14, 8]).tolist(), 881250949 + int(rng.integers(15)))
        for _ in range(RATINGS)
    ]
    lines = [f"{user}\t{item}\t3\t{time}\n" for user, item, time in rated]
    folder = folder_of(tmp_path, inter=HEADER + "".join(lines))
    data = MovieLens100K(folder, ratings=RATINGS, earlier_items=4)
    assert data.features[-1] == FeatureSpec("earlier_items", "item", 4, "none")
    lengths = []
    for batch in (data.train_batch(0, 24), *data.test_batches(2)):
        for i, ids in enumerate(np.asarray(batch.ids["earlier_items"])):
            user, _, now = rated[line_of(batch, i) - 2]
            before = [(t, item) for u, item, t in rated if u == user and t < now]
            # Those of one moment may be in any order, but none may be missing.
            count = min(4, len(before))
            times = sorted(t for t, _ in before)[len(before) - count :]
            assert (ids[: 4 - count] == -1).all()
            for t in set(times):
                chosen = [ids[4 - count + k] + 5 for k in range(count) if times[k] == t]
                there = [item for when, item in before if when == t]
                assert all(chosen.count(x) <= there.count(x) for x in chosen)
            lengths.append(count)
    assert {0, 4} < set(lengths)


def test_splits_are_disjoint_and_cover_all_for_every_seed(tiny, tmp_path):
    splits = [
        [tiny.train_batch(0, 24)],
        tiny.validation_batches(2),
        tiny.test_batches(2),
    ]
    lines = [lines_of(split) for split in splits]
    assert [len(split) for split in lines] == [24, 3, 3]
    assert sorted(itertools.chain(*lines)) == list(range(2, RATINGS + 2))
    other = open_tiny(tmp_path, seed=9)
    assert lines_of(other.test_batches(3)) == lines[2]


def test_each_epoch_has_every_training_sample_once_in_its_own_order(tiny, tmp_path):
    def lines(data, batch_size):
        steps = range(2 * 24 // batch_size)
        return lines_of(data.train_batch(step, batch_size) for step in steps)

    both = lines(tiny, 16)
    assert sorted(both[:24]) == sorted(both[24:])
    assert both[:24] != both[24:]
    assert both == lines(tiny, 48) == lines(tiny, 1)
    assert both == lines(open_tiny(tmp_path), 16)
    assert both != lines(open_tiny(tmp_path, seed=1), 16)


LINE = "11\t5\t3\t881250949"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("inter", HEADER + f"{LINE}\t9\n", "inter, line 2: has 5 columns, must have 4"),
        ("inter", HEADER + f"{LINE}\n", "has 1 ratings, must have 30"),
        ("inter", "", "inter, line 1: is empty"),
        ("inter", HEADER + f"{LINE}\n".replace("11", "14"), "user: has no user 14"),
        ("inter", HEADER + f"{LINE}\n".replace("5", "8", 1), "item: has no item 8"),
        (
            "user",
            USERS.replace("53", "old"),
            "user, line 3: .*age.*is 'old', must be a num",
        ),
    ],
)
def test_damage_is_named(tmp_path, kind, text, message):
    folder = folder_of(tmp_path, **{kind: text})
    with pytest.raises(DataError, match=rf"ml-100k\..*{message}") as info:
        open_tiny(folder)
    assert str(info.value).endswith(
        "; `embark data movielens-100k` fetches a good copy"
    )


def test_the_real_data(movielens_folder):
    data = MovieLens100K(movielens_folder)
    assert data.train_samples == 80_000
    # Counts of the README of the data set: https://files.grouplens.org/datasets/movielens
    # /ml-100k-README.txt
    rows = data.table_rows
    assert (rows["user"], rows["item"]) == (943, 1682)
    assert (rows["gender"], rows["occupation"], rows["genres"]) == (2, 21, 19)
    train = data.train_batch(0, 80_000)
    validation = list(data.validation_batches(4096))
    test = list(data.test_batches(4096))
    assert [len(batch) for batch in test] == [4096, 4096, 1808]
    assert sorted(lines_of([train, *validation, *test])) == list(range(2, 100_002))
    # 34,174 ratings of 4 and 21,201 of 5 stars.
    liked = sum(batch.labels.sum() for batch in [train, *validation, *test])
    assert liked == 34_174 + 21_201
    check = BatchChecker(data.features, rows, data.dense_features)
    for batch in [train, *validation, *test]:
        check(batch)
