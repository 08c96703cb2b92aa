"""Searches: what is tried, which trial counts as best, and that they can be resumed."""

import math
from pathlib import Path

import pytest

from embark_jax.config import reading
from embark_jax.run import trials
from tests import runs
from tests.run import trials_in_name
from tests.run.trials_in_name import rows
from tests.runs import done, embark

CONFIG = trials_in_name.CONFIG.replace("steps: 2", "steps: 2, eval_every: 1")
CONFIG += """\
search:
  embedding.optimizer.learning_rate: {low: 1e-4, high: 1, log: true}
  train.steps: {low: 2, high: 5}
  model.bottom: {choose: [[4], [8, 4]]}
"""
BEST_RATE = 0.02


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path, CONFIG)


def quality(config) -> float:
    """An AUC that is best at one rate and with two layers."""
    distance = abs(math.log10(config.embedding.optimizer.learning_rate / BEST_RATE))
    return 0.8 - 0.05 * distance + 0.01 * len(config.model.bottom)


def records(config) -> list[dict] | None:
    """Of a training in name only: the test set says the opposite of the validation
    set, and a rate above 0.5 diverges."""
    if config.embedding.optimizer.learning_rate > 0.5:
        return None
    auc = quality(config)
    return [
        {"step": 1, "validation_auc": auc, "validation_log_loss": 1 - auc},
        {"step": 2, "validation_auc": auc - 0.1, "validation_log_loss": 1.1 - auc},
        {"step": 2, "final": True, "test_auc": 1 - auc, "test_log_loss": 0.7},
    ]


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    return trials_in_name.train_in_name(monkeypatch, records)


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_the_best_validation_decides(config, trained, tmp_path, metric):
    workdir = tmp_path / "search"
    args = ("--trials", "40", "--metric", metric, "--workdir", workdir)
    done("search", config, *args)
    assert trained == [f"trial-{i:04d}" for i in range(1, 41)]
    found = [row for row in rows(workdir) if row[f"validation_{metric}"]]
    sign = 1 if metric == "auc" else -1
    best = max(found, key=lambda row: sign * float(row[f"validation_{metric}"]))
    kept = reading.load(workdir / "best.yaml")
    assert kept == reading.load(workdir / best["folder"] / "config.yaml")
    assert kept.search is None
    assert quality(kept) > 0.81
    tried = [reading.load(path) for path in workdir.glob("trial-*/config.yaml")]
    assert {each.model.bottom for each in tried} == {(4,), (8, 4)}
    assert {each.train.steps for each in tried} == {2, 3, 4, 5}
    rates = [each.embedding.optimizer.learning_rate for each in tried]
    assert 1e-4 <= min(rates) < max(rates) <= 1


def test_a_resumed_search_chooses_as_an_undisturbed_one(config, trained, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    args = ("search", config, "--trials")
    done(*args, "14", "--workdir", whole)
    done(*args, "12", "--workdir", parts)
    again = embark(*args, "14", "--workdir", parts)
    runs.assert_refused(again, "is not empty: pass --resume to continue the search")
    del trained[:]
    done(*args, "14", "--workdir", parts, "--resume")
    diverged = [row["folder"] for row in rows(parts)[:12] if row["diverged"]]
    assert trained == [*diverged, "trial-0013", "trial-0014"]
    assert rows(parts) == rows(whole)
    other = embark(*args, "14", "seed=1", "--workdir", parts, "--resume")
    runs.assert_refused(other, "is of another search", "seed is 0 in the folder, 1")


def test_a_search_that_trained_nothing_leaves_nothing(config, trained, tmp_path):
    """Its folder may be used by another."""
    folder = tmp_path / "search"
    args = ("--trials", "2", "--workdir", folder)
    folder.mkdir()
    reading.save(reading.load(config, ["seed=1"]), folder / "search.yaml")
    done("search", config, *args)
    assert len(rows(folder)) == len(trained) == 2


def test_trials_at_the_same_time_are_chosen_together(
    config, trained, tmp_path, monkeypatch
):
    """Run in turn here, since other processes know nothing of the fixture."""
    together = []

    train_trials = trials.train_trials

    def in_turn(named, workdir, console, jobs):
        together.append((jobs, [trial.name for trial in named]))
        return train_trials(named, workdir, console, 1)

    monkeypatch.setattr(trials, "train_trials", in_turn)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    args = ("search", config, "--jobs", "3", "--trials")
    done(*args, "14", "--workdir", whole)
    assert together[0] == (3, ["trial-0001", "trial-0002", "trial-0003"])
    assert together[4] == (3, ["trial-0013", "trial-0014"])
    done(*args, "13", "--workdir", parts)
    done(*args, "14", "--workdir", parts, "--resume")
    assert rows(parts) == rows(whole)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("search=null", "search has no values, must be such as"),
        ("train.eval_every=null", "train.eval_every is not set"),
        ("search.train.steps={low: 5, high: 2}", "low is 5, must be below high, 2"),
        ("search.train.steps={low: 0, high: 2, log: true}", "must be above 0"),
        ("search.train.steps={low: 1}", "must have choose, or low and high"),
        ("search.train.steps={choose: [1], low: 1}", "give one or the other"),
        ("search.train.stebs={low: 1, high: 2}", "did you mean steps? (tried with"),
    ],
)
def test_what_cannot_be_searched_is_said(config, trained, tmp_path, change, text):
    workdir = tmp_path / "search"
    runs.assert_refused(embark("search", config, change, "--workdir", workdir), text)
    assert not trained


def test_nor_is_a_search_one_run_or_without_a_validation_set(config, tmp_path):
    new = tmp_path / "new"
    refused = embark("train", config, "--workdir", new)
    runs.assert_refused(refused, "run embark search, or add search=null")
    refused = embark("search", config, "--trials", "1", "--workdir", new)
    runs.assert_refused(refused, "a search needs data with a validation set")
