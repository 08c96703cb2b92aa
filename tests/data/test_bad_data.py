"""Bad data, from the file to the message or to the count in the final record."""

from pathlib import Path

import numpy as np
import pytest

from embark_jax.data import DataError, MovieLens100K
from tests import runs
from tests.runs import assert_refused, embark
from tests.thorough import thorough

USERS, ITEMS, RATINGS, BATCH = 30, 40, 100_000, 500
ROWS = 20
"""Of the user table in tests of bad ids: a third of the users are beyond it."""
CONFIG = f"""\
name: bad
data: {{kind: movielens_100k}}
model: {{kind: dlrm, bottom: [4], top: [1]}}
embedding: {{dim: 4, tables: {{user: {{rows: {ROWS}}}}}}}
train: {{batch_size: {BATCH}, steps: 2}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files like those of MovieLens-100k, with few users and films."""
    folder = tmp_path_factory.mktemp("ml-100k")
    rng = np.random.default_rng(0)
    headers = {
        "user": "user_id:token age:token gender:token occupation:token zip_code:token",
        "item": "item_id:token movie_title:token_seq release_year:token "
        "class:token_seq",
        "inter": "user_id:token item_id:token rating:float timestamp:float",
    }
    rows = {
        "user": [f"{i}\t{20 + i}\tF\twriter\t{i % 4}" for i in range(USERS)],
        "item": [f"{i}\tFilm {i}\t1995\tDrama Comedy" for i in range(ITEMS)],
        "inter": [
            f"{user}\t{item}\t{stars}\t{881250949 + i}"
            for i, (user, item, stars) in enumerate(
                rng.integers([0, 0, 1], [USERS, ITEMS, 6], (RATINGS, 3))
            )
        ],
    }
    for kind, header in headers.items():
        lines = ["\t".join(header.split()), *rows[kind]]
        (folder / f"ml-100k.{kind}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def train(folder, tmp_path):
    """Trains in ``tmp_path / "run"`` on that data."""
    config = runs.write_config(tmp_path, CONFIG)

    def train(*args, data=folder):
        workdir = tmp_path / "run"
        return embark("train", config, f"data.path={data}", "--workdir", workdir, *args)

    return train


def bad_ids(batches) -> int:
    return sum(int((batch.ids["user"] >= ROWS).sum()) for batch in batches)


@pytest.mark.parametrize("on_bad_id", thorough(["drop", "hash"], []))
def test_mended_ids_are_counted_also_over_a_resume(train, folder, tmp_path, on_bad_id):
    data, change = MovieLens100K(folder), f"embedding.on_bad_id={on_bad_id}"
    test_set = bad_ids(data.test_batches(BATCH))
    for steps, resume in ((2, ()), (4, ("--resume",))):
        outcome = train(change, f"train.steps={steps}", *resume)
        assert (outcome.code, outcome.err) == (0, "")
        training = bad_ids(data.train_batch(step, BATCH) for step in range(steps))
        counts = {
            k: v for k, v in runs.final(tmp_path / "run").items() if "bad_ids" in k
        }
        assert counts == {"bad_ids/user": training, "test_bad_ids/user": test_set}
        assert (
            f"training: {training:,} bad ids of 'user' were dropped or hashed\n"
            in outcome.out
        )
        assert f"the test set: {test_set:,} bad ids of 'user'" in outcome.out


def test_steps_before_bad_data_are_kept(train, tmp_path, monkeypatch):
    """Also where no checkpoint was due."""
    good = MovieLens100K.train_batch

    def train_batch(self, step, batch_size):
        if step == 3:
            raise DataError("row 1,501: junk")
        return good(self, step, batch_size)

    options = "embedding.on_bad_id=drop", "train.steps=5"
    with monkeypatch.context() as damaged:
        damaged.setattr(MovieLens100K, "train_batch", train_batch)
        outcome = train(*options)
    assert_refused(outcome, "row 1,501: junk")
    assert "a checkpoint holds all 3 good steps" in outcome.out
    resumed = train(*options, "--resume")
    assert (resumed.code, resumed.err) == (0, "")
    assert "resumed at step 3 of 5" in resumed.out
