"""Searches: what is tried, which trial counts as best, and that they can be resumed."""

import csv
import json
import math
from pathlib import Path

import pytest

from embark_jax.config import reading
from embark_jax.run import training, trials
from embark_jax.train.outcome import NonFiniteLossError
from tests import runs
from tests.runs import embark

CONFIG = """\
name: tiny
data: {kind: synthetic, dense_features: 2, train_samples: 256, test_samples: 64}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4, tables: {user: {rows: 50}}}
train: {batch_size: 32, steps: 2, eval_every: 1}
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


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Names of the folders that a training in name only was asked for. The test set
    says the opposite of the validation set; a rate above 0.5 diverges."""
    folders = []

    def train(config, workdir, resume, console):
        assert resume == workdir.exists()
        folders.append(workdir.name)
        workdir.mkdir(exist_ok=True)
        reading.save(config, workdir / "config.yaml")
        if config.embedding.optimizer.learning_rate > 0.5:
            raise NonFiniteLossError("loss is nan at step 2\nthe batch: ...")
        auc = quality(config)
        final = {"final": True, "test_auc": 1 - auc, "test_log_loss": 0.7}
        lines = [
            {"step": 1, "validation_auc": auc, "validation_log_loss": 1 - auc},
            {"step": 2, "validation_auc": auc - 0.1, "validation_log_loss": 1.1 - auc},
            {"step": 2} | final,
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (workdir / "metrics.jsonl").write_text(text)
        return final

    monkeypatch.setattr(training, "train", train)
    return folders


def rows(workdir: Path) -> list[dict[str, str]]:
    with (workdir / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_the_best_validation_decides(config, trained, tmp_path, metric):
    workdir = tmp_path / "search"
    args = ("--trials", "40", "--metric", metric, "--workdir", workdir)
    outcome = embark("search", config, *args)
    assert (outcome.code, outcome.err) == (0, "")
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
    assert embark(*args, "14", "--workdir", whole).code == 0
    assert embark(*args, "12", "--workdir", parts).code == 0
    again = embark(*args, "14", "--workdir", parts)
    assert again.code == 1
    assert "is not empty: pass --resume to continue the search" in again.err
    del trained[:]
    assert embark(*args, "14", "--workdir", parts, "--resume").code == 0
    diverged = [row["folder"] for row in rows(parts)[:12] if row["diverged"]]
    assert trained == [*diverged, "trial-0013", "trial-0014"]
    assert rows(parts) == rows(whole)
    other = embark(*args, "14", "seed=1", "--workdir", parts, "--resume")
    assert other.code == 1
    assert "is of another search" in other.err


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
    assert embark(*args, "14", "--workdir", whole).code == 0
    assert together[0] == (3, ["trial-0001", "trial-0002", "trial-0003"])
    assert together[4] == (3, ["trial-0013", "trial-0014"])
    assert embark(*args, "13", "--workdir", parts).code == 0
    assert embark(*args, "14", "--workdir", parts, "--resume").code == 0
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
    outcome = embark("search", config, change, "--workdir", workdir)
    assert outcome.code == 1
    assert text in outcome.err
    assert not trained


def test_a_search_is_not_trained_as_one_run(config, tmp_path):
    outcome = embark("train", config, "--workdir", tmp_path / "run")
    assert outcome.code == 1
    assert "run embark search, or add search=null" in outcome.err


def test_data_without_a_validation_set_are_refused(config, tmp_path):
    outcome = embark("search", config, "--trials", "1", "--workdir", tmp_path / "new")
    assert outcome.code == 1
    assert "a search needs data with a validation set" in outcome.err
