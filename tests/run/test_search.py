"""Searches: what is tried, which trial counts as best, and that they go on."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

from embark_jax import run
from embark_jax._base.config import ConfigError
from embark_jax.cli import errors
from embark_jax.cli.arguments import console
from embark_jax.config import reading
from embark_jax.data import SyntheticClicks
from embark_jax.run import training
from embark_jax.run.search import Trials
from embark_jax.train.results import NonFiniteLossError
from tests import runs
from tests.runs import done, embark

CONFIG = """\
name: tiny
data: {kind: synthetic, dense_features: 2, train_samples: 256, test_samples: 64}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4, tables: {user: {rows: 50}}}
train: {batch_size: 32, steps: 2, eval_every: 1}
"""
RANGES = """\
search:
  embedding.optimizer.learning_rate: {low: 1e-4, high: 1, log: true}
  train.steps: {low: 2, high: 5}
  model.bottom: [[4], [8, 4]]
"""
GRID = ("search.seed=[0, 1]", "search.embedding.optimizer.learning_rate=[0.5, 1e-3]")


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path, CONFIG)


@pytest.fixture
def ranges(tmp_path) -> Path:
    return runs.write_config(tmp_path, CONFIG + RANGES)


class Trained(list):
    """Folders of the runs that began; the run of number ``ends_at`` is ended early."""

    ends_at: int | None = None


def has_validation(monkeypatch, is_there: bool) -> None:
    """Gives the data a validation set, or none."""
    batches = iter([]) if is_there else None
    monkeypatch.setattr(SyntheticClicks, "validation_batches", lambda *_: batches)


@pytest.fixture
def trained(monkeypatch) -> Trained:
    """Puts something in the place of training that leaves a run's folder at once: its
    AUC is best at one rate and for seed 1, and a rate of 1e-3 with it diverges."""
    folders = Trained()

    def train(config, workdir, resume, console):
        assert resume == workdir.exists()
        folders.append(workdir.name)
        workdir.mkdir(exist_ok=True)
        reading.save(config, workdir / "config.yaml")
        if len(folders) - 1 == folders.ends_at:
            return None
        rate = config.embedding.optimizer.learning_rate
        if (config.seed, rate) == (1, 1e-3):
            raise NonFiniteLossError("loss is nan at step 2")
        auc = 0.7 - 0.05 * abs(math.log10(rate / 0.02)) + 0.1 * config.seed
        worse = {"step": 1, "validation_auc": auc - 0.1}
        best = {"step": 2, "validation_auc": auc, "validation_log_loss": rate}
        last = {"step": 3, "final": True, "test_auc": auc, "test_log_loss": 0.7}
        lines = [json.dumps(record) for record in (worse, best, last)]
        (workdir / "metrics.jsonl").write_text("\n".join([*lines, ""]))
        return last

    monkeypatch.setattr(training, "train", train)
    has_validation(monkeypatch, True)
    return folders


def values_of(workdir: Path) -> list[tuple]:
    """Seed and rate of the trials, in the order of their folders."""
    configs = sorted(workdir.glob("*/config.yaml"))
    loaded = [reading.load(path) for path in configs]
    return [(c.seed, c.embedding.optimizer.learning_rate) for c in loaded]


def test_a_grid_tries_each_combination_once(config, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "width", 120)  # else a worker's COLUMNS folds values
    workdir = tmp_path / "grid"
    outcome = done("search", config, *GRID, "--workdir", workdir)
    expected = [(seed, rate) for seed in (0, 1) for rate in (0.5, 1e-3)]
    assert sorted(values_of(workdir)) == sorted(expected)
    assert "0.68010 ± 0.07071" in outcome.out, "two seeds share a line"
    assert "best validation_auc" in outcome.out
    assert "the test set decided" not in outcome.out
    best = re.search(r"the best config: (.*)", outcome.out)
    assert best is not None
    assert reading.load(best[1]).seed == 1
    del trained[:]
    again = done("search", config, *GRID, "--workdir", workdir)
    assert not trained, "the same command has nothing left to do"
    assert again.out.count("│") == outcome.out.count("│")


def test_of_two_searches_begun_at_once_one_is_refused(config, tmp_path, monkeypatch):
    """The second begins while the first writes its config."""
    save, workdir = reading.save, tmp_path / "grid"
    first, second = (
        Trials(config, [f"search.seed={seeds}"], "auc", workdir, console)
        for seeds in ([0, 1], [2, 3])
    )

    def save_late(written, path):
        monkeypatch.setattr(reading, "save", save)
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: 1)
            second.open()
        save(written, path)

    monkeypatch.setattr(reading, "save", save_late)
    with pytest.raises(ConfigError, match=r"search.yaml: is of another search:\n"):
        first.open()
    (kept,) = workdir.iterdir()
    assert reading.load(kept).search["seed"].choose == (2, 3)


def test_trials_are_compared_like_runs(config, trained, tmp_path):
    """By the folder of the search, or by folders of their own."""
    done("search", config, *GRID, "--workdir", tmp_path / "grid")
    page = tmp_path / "page.html"
    plan = tmp_path / "grid" / "trial-0000" / "plan.json"
    plan.write_text('{"version": 3}')  # of an old run
    outcome = done("compare", tmp_path / "grid", "--metric", "auc", "--html", page)
    assert "0.68010 ± 0.07071" in outcome.out
    assert "embedding.optimizer.learning_rate" in page.read_text()
    two = [tmp_path / "grid" / f"trial-000{i}" for i in (0, 2)]
    outcome = done("compare", *two)
    assert "trial-0000 and 1 more" in outcome.out, "they differ in their seed alone"
    refused = embark("compare", *two, "--metric", "aucc")
    runs.assert_refused(refused, "--metric is 'aucc'; did you mean auc?")


@pytest.mark.parametrize("search", [(), GRID], ids=["ranges", "grid"])
def test_a_trial_that_was_ended_early_goes_on_in_its_folder(
    ranges, trained, tmp_path, search
):
    ranges.write_text(CONFIG + ("" if search else RANGES))
    workdir = tmp_path / "search"
    args = ("search", ranges, *search, "--workdir", workdir)
    args += () if search else ("--trials", "4")
    trained.ends_at = 1
    done(*args)
    assert trained == ["trial-0000", "trial-0001"]
    values = values_of(workdir)[1]
    trained.ends_at = None
    done(*args)
    assert trained.count("trial-0001") == 2
    assert values_of(workdir)[1] == values
    assert len(values_of(workdir)) == 4


def test_a_longer_search_draws_new_values(ranges, trained, tmp_path):
    """The first of a search are the same, whether it is begun once or continued."""
    rates = []
    for name, *steps in (("whole", 4), ("continued", 2, 4)):
        for wanted in steps:
            args = "--trials", wanted, "--workdir", tmp_path / name
            done("search", ranges, *args)
        rates.append([rate for _, rate in values_of(tmp_path / name)])
    assert len(rates[0]) == len({*rates[0]}) == 4
    assert rates[0] == rates[1]


def test_two_commands_at_once_draw_different_values_and_no_trial_too_many(
    ranges, trained, tmp_path, monkeypatch
):
    """The second begins while the first trains its first trial."""
    search = "search", ranges, "--trials", 3, "--workdir", tmp_path / "search"
    train, begun = training.train, []

    def train_beside_another(*args):
        begun.append(args)
        if len(begun) == 1:
            done(*search)
        return train(*args)

    monkeypatch.setattr(training, "train", train_beside_another)
    done(*search)
    assert sorted(trained) == ["trial-0000", "trial-0001", "trial-0002"]
    assert len({rate for _, rate in values_of(tmp_path / "search")}) == 3


@pytest.mark.parametrize("search", [(), GRID], ids=["ranges", "grid"])
def test_a_trial_whose_process_was_killed_is_run_by_the_next_command(
    ranges, trained, tmp_path, monkeypatch, search
):
    ranges.write_text(CONFIG + ("" if search else RANGES))
    args = "search", ranges, *search, "--workdir", tmp_path / "search"
    args += () if search else ("--trials", 2)
    train = training.train

    def killed(config, workdir, *_):
        workdir.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", killed)
    monkeypatch.setattr(errors, "end_at_ctrl_c", lambda: None)
    embark(*args)
    monkeypatch.setattr(training, "train", train)
    done(*args)
    assert len({*trained}) == len(trained) == (4 if search else 2)
    assert trained[0] == "trial-0000"


def test_without_optuna_there_are_grids(ranges, config, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "embark_jax.run.sampled_search", raising=False)
    monkeypatch.delattr(run, "sampled_search", raising=False)
    ranges = runs.write_config(tmp_path, CONFIG + RANGES)
    refused = embark("search", ranges, "--workdir", tmp_path / "ranges")
    runs.assert_refused(refused, "pip install 'embark_jax[search]'")
    assert not trained
    config.write_text(CONFIG)
    done("search", config, *GRID, "--workdir", tmp_path / "grid")
    assert len(trained) == 4


def test_a_folder_of_another_search_is_refused(config, trained, tmp_path):
    workdir = tmp_path / "grid"
    done("search", config, *GRID, "--workdir", workdir)
    before = runs.snapshot(workdir)
    for change in ("train.steps=3", "search.seed=[0, 2]"):
        other = embark("search", config, *GRID, change, "--workdir", workdir)
        runs.assert_refused(other, "is of another search")
    assert runs.snapshot(workdir) == before


def test_a_grid_by_a_metric_that_its_runs_do_not_have_ends_with_the_first(
    config, trained, tmp_path
):
    """No config is called the best by a metric that none has."""
    args = "search", config, *GRID, "--metric", "hr@10", "--workdir", tmp_path / "grid"
    refused = embark(*args)
    runs.assert_refused(refused, "validation_hr@10", "validation_auc")
    assert trained == ["trial-0000"]


def test_the_test_set_decides_only_where_no_other_is(
    config, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(console, "width", 120)
    search = ("search", config, *GRID, "train.eval_every=null", "--workdir")
    refused = embark(*search, tmp_path / "refused")
    runs.assert_refused(refused, "train.eval_every is not set")
    assert not trained
    has_validation(monkeypatch, False)
    outcome = done(*search, tmp_path / "grid")
    assert len(trained) == 4
    assert "best test_auc" in outcome.out
    assert "the test set decided, as the data have no validation set" in outcome.out


def test_nor_is_a_search_one_run_or_without_a_validation_set(ranges, tmp_path):
    new = tmp_path / "new"
    refused = embark("train", ranges, "--workdir", new)
    runs.assert_refused(refused, "run embark search, or add search=null")
    refused = embark("search", ranges, "--trials", "1", "--workdir", new)
    runs.assert_refused(refused, "a search needs data with a validation set")


@pytest.mark.slow
def test_trials_are_trainings_also_of_two_commands_at_once(config, tmp_path):
    workdir = tmp_path / "grid"
    arguments = ("search", config, "search.seed=[0, 1, 2, 3]", "--workdir", workdir)
    done("search", config, "search.seed=[0]", "--workdir", tmp_path / "one")
    processes = [runs.start(*arguments) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    assert sorted(seed for seed, _ in values_of(workdir)) == [0, 1, 2, 3]
    alone = runs.final(tmp_path / "one" / "trial-0000")
    (same,) = (
        path.parent
        for path in workdir.glob("*/config.yaml")
        if reading.load(path).seed == 0
    )
    assert runs.final(same)["test_auc"] == alone["test_auc"]
