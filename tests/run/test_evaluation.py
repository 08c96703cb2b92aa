"""Evaluations of labels that leave something undefined: they end no run, and all else
is measured."""

import gc
import math
import weakref

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.config import reading
from embark_jax.data import Batch
from embark_jax.plans.tables import FeatureSpec
from embark_jax.run import evaluation, experiment
from tests import runs

USERS, ITEMS = 30, 40


class Events:
    """Events of users and items, whose past items are those of the numbers before: one
    in three held-out items is a repeat.

    Args:
      labels: of training and of held-out samples, such as [0.5, math.nan] of two tasks;
        None draws clicks.
    """

    table_rows = {"user": USERS, "item": ITEMS}  # noqa: RUF012
    features = (
        FeatureSpec("user"),
        FeatureSpec("item"),
        FeatureSpec("past", "item", 3, "mean"),
    )
    dense_features = 0

    def __init__(self, train=None, held_out=None, seed=0):
        self.train_samples = 256
        self._labels = train, held_out

    def train_batch(self, step, batch_size):
        return self._batch((step * batch_size + np.arange(batch_size)) % 256)

    def validation_batches(self, batch_size):
        return self._batches(256, 320, batch_size)

    def test_batches(self, batch_size):
        return self._batches(320, 400, batch_size)

    def _batches(self, begin, end, batch_size):
        for first in range(begin, end, batch_size):
            yield self._batch(np.arange(first, min(first + batch_size, end)))

    def _batch(self, numbers):
        rng = np.random.default_rng(0)
        clicks = rng.integers(0, 2, 400)[numbers]
        items = rng.integers(0, ITEMS, (400, 4))[numbers]
        items[numbers % 3 == 0, 0] = items[numbers % 3 == 0, 3]
        labels = self._labels[int(numbers[0] >= 256)]
        labels = clicks if labels is None else np.tile(labels, (len(numbers), 1))
        ids = {
            "user": rng.integers(0, USERS, (400, 1))[numbers],
            "item": items[:, :1],
            "past": items[:, 1:],
        }
        labels = labels[:, 0] if np.shape(labels)[1:] == (1,) else labels
        return Batch(np.zeros((len(numbers), 0)), ids, labels.astype(np.float32))


CONFIG = """\
data: {kind: "tests.run.test_evaluation:Events"}
model: {kind: dcn}
embedding: {dim: 4}
train: {batch_size: 64, steps: 4, eval_every: 2, checkpoint_every: 2}
"""


@pytest.mark.slow
def test_a_task_without_labels_leaves_the_other_its_metrics(tmp_path):
    """Purchases of the last days are not known yet."""
    changes = (
        "model={kind: mmoe, tasks: [click, buy], expert: [4], tower: [4]}",
        "data.train=[1, 0]",
        "data.held_out=[1, .nan]",
        "train.early_stopping={metric: log_loss}",
    )
    config = runs.write_config(tmp_path, CONFIG)
    outcome = runs.done("train", config, *changes, "--workdir", tmp_path / "run")
    final = runs.final(tmp_path / "run")
    assert (final["test_samples/click"], final["test_samples/buy"]) == (80, 0)
    assert final["test_log_loss/click"] > 0
    assert final["test_log_loss/buy"] is final["test_log_loss"] is None
    reason = "undefined: all of buy, no sample has its label"
    assert (
        outcome.out.count(reason) == 2
    )  # once for the validation set, once at the end
    assert sum("validation_samples" in r for r in runs.records(tmp_path / "run")) == 2


@pytest.mark.slow
def test_soft_labels_and_groups_and_no_positives(tmp_path, monkeypatch):
    config = runs.write_config(tmp_path, CONFIG)
    soft = "data.train=[0.3]", "data.held_out=[0.3]"
    runs.done("train", config, *soft, "--workdir", tmp_path / "soft")
    found = runs.shown_results(monkeypatch)
    runs.done("evaluate", tmp_path / "soft", "--trust-code", "--group-by", "user")
    assert found["test_log_loss"] > 0
    assert found["test_auc"] is found["test_gauc"] is found["test_ndcg@10"] is None
    towers = "model={kind: two_tower, items: [item], tower: [4]}", "train.retrieval={}"
    none = "data.train=[1]", "data.held_out=[0]"
    outcome = runs.done(
        "train", config, *towers, *none, "--workdir", tmp_path / "towers"
    )
    assert "undefined: hr@10, ndcg@10, needs a sample of label 1" in outcome.out


@pytest.mark.slow
def test_a_seen_item_is_missed_where_seen_items_are_hidden(tmp_path):
    """As a server would miss it; over all items, the last of 40 is found."""
    config = runs.write_config(tmp_path, CONFIG)
    args = (
        "model={kind: two_tower, items: [item], tower: [4]}",
        "data.train=[1]",
        "data.held_out=[1]",
    )
    for exclude, name in (("past", "hidden"), ("null", "all")):
        retrieval = f"train.retrieval={{at: [10, {ITEMS}], exclude: {exclude}}}"
        outcome = runs.done(
            "train", config, *args, retrieval, "--workdir", tmp_path / name
        )
        assert "auc" not in outcome.out  # there is nothing but positives
    hidden, both = (runs.final(tmp_path / name) for name in ("hidden", "all"))
    numbers = np.arange(320, 400)
    items = np.random.default_rng(0)
    items.integers(0, 2, 400)
    items = items.integers(0, ITEMS, (400, 4))[numbers]
    items[numbers % 3 == 0, 0] = items[numbers % 3 == 0, 3]
    repeats = np.mean((items[:, :1] == items[:, 1:]).any(axis=1))
    assert 0.3 < repeats < 0.5
    assert hidden["test_repeats"] == pytest.approx(repeats)
    assert hidden[f"test_hr@{ITEMS}"] == pytest.approx(1 - repeats)
    assert "test_repeats" not in both
    assert both[f"test_hr@{ITEMS}"] == 1
    assert math.isfinite(both["test_ndcg@10"])


def test_an_evaluation_of_all_items_keeps_no_batches(tmp_path):
    """It reads them twice, for scores and for the users' vectors."""
    overrides = (
        "model={kind: two_tower, items: [item], tower: [4]}",
        "train.retrieval={}",
        "train.batch_size=4",
    )
    path = runs.write_config(tmp_path, CONFIG)
    setup = experiment.build(reading.load(path, overrides))
    read_so_far: list[weakref.ref] = []
    numbers = []

    def read():
        for batch in setup.dataset.test_batches(4):
            read_so_far.append(weakref.ref(batch))
            gc.collect()
            numbers.append(sum(each() is not None for each in read_so_far))
            yield batch

    found = evaluation.on_split(setup, setup.trainer(), "test", read)
    assert found["test_samples"] == 80
    assert found["test_hr@10"] is not None
    assert len(numbers) == 2 * 80 / 4
    assert max(numbers) < 80 / 4 / 2


def first_of_groups(labels, scores, weights, groups):
    """Share of users whose sample of the largest score is positive."""
    assert weights is None
    of_users = [groups == user for user in set(groups.tolist())]
    return float(np.mean([labels[mine][scores[mine].argmax()] for mine in of_users]))


def fails(labels, scores, weights, groups):
    raise ZeroDivisionError(f"{len(labels)} samples")


@pytest.mark.slow
def test_a_metric_of_ones_own_is_one_like_any_other(tmp_path):
    """It is shown, logged, stops a run early and orders a comparison; and one that
    fails ends nothing."""
    here = "tests.run.test_evaluation"
    config = runs.write_config(
        tmp_path,
        CONFIG.replace(
            "checkpoint_every: 2}",
            "checkpoint_every: 2, early_stopping: {metric: first, min_change: 2}, "
            f"metrics: {{first: {{function: '{here}:first_of_groups', groups: user}}, "
            f"broken: {{function: '{here}:fails'}}}}}}",
        ),
    )
    with pytest.warns(UserWarning, match="fails raised ZeroDivisionError: 64 samples"):
        outcome = runs.embark(
            "train",
            config,
            "train.steps=8",
            "train.early_stopping.patience=2",
            "--workdir",
            tmp_path / "run",
        )
    assert outcome.code == 0, outcome.err
    final = runs.final(tmp_path / "run")
    assert (final["step"], final["best_step"]) == (6, 2)
    assert final["test_broken"] is None
    run, trainer = ej.load_run(tmp_path / "run", trust_code=True)
    (batch,) = run.dataset.test_batches(80)
    logits = np.concatenate(
        [np.asarray(x) for _, x in trainer.predict(run.dataset.test_batches(64))]
    )
    users = batch.ids["user"][:, 0]
    best = {user: max(logits[users == user]) for user in users.tolist()}
    hits = [batch.labels[logits == score].mean() for score in best.values()]
    assert final["test_first"] == pytest.approx(np.mean(hits))
    assert "validation first was best at step 2" in outcome.out
    shown = runs.done("compare", tmp_path / "run", "--metric", "first").out
    assert "best validation_first" in shown
