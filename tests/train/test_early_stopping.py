"""When training stops early: on made-up curves, and in a run."""

from __future__ import annotations

import pytest

from embark_jax.config import ConfigError, EarlyStoppingConfig
from embark_jax.data import SyntheticClicks
from embark_jax.train.early_stopping import EarlyStopping
from tests import runs
from tests.runs import embark


@pytest.mark.parametrize(
    ("config", "curve", "best_step", "ended_at"),
    [
        ({"metric": "auc", "patience": 2}, [0.5, 0.7, 0.6, 0.8, 0.8, 0.7], 4, 6),
        ({"metric": "log_loss", "patience": 2}, [0.7, 0.5, 0.6, 0.5, 0.4], 2, 4),
        ({"metric": "log_loss", "patience": 3}, [0.7, 0.5, 0.6, 0.5, 0.4], 5, None),
        (
            {"metric": "auc", "patience": 2, "min_change": 0.15},
            [0.5, 0.6, 0.64, 0.9],
            1,
            3,
        ),
    ],
)
def test_made_up_curves(config, curve, best_step, ended_at):
    key = f"validation_{config['metric']}"
    records = [{"step": step, key: value} for step, value in enumerate(curve, 1)]
    stopping, ended = EarlyStopping(EarlyStoppingConfig(**config)), None
    for record in records:
        stopping.add(record["step"], record)
        if stopping.ended:
            ended = record["step"]
            break
    assert (stopping.best_step, ended) == (best_step, ended_at)
    # A run that resumes anywhere between goes on as if it had never been interrupted.
    for cut in range(ended or len(curve)):
        resumed = EarlyStopping(EarlyStoppingConfig(**config), records[:cut])
        for record in records[cut : ended or len(curve)]:
            resumed.add(record["step"], record)
        assert str(resumed) == str(stopping)


def test_a_metric_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="auc has no value for these labels"):
        EarlyStopping(EarlyStoppingConfig()).add(1, {"validation_auc": None})


OPTIONS = (
    *("train.steps=8", "train.eval_every=2", "train.keep_checkpoints=1"),
    # No evaluation is better than the first by so much.
    "train.early_stopping={patience: 1, min_change: 1}",
)


def test_the_best_step_is_kept_and_evaluated(tmp_path, monkeypatch):
    monkeypatch.setattr(
        SyntheticClicks, "validation_batches", SyntheticClicks.test_batches
    )
    config, workdir = runs.write_config(tmp_path), tmp_path / "run"
    command = ("train", config, *OPTIONS, "train.checkpoint_every=4")
    outcome = embark(*command, "--workdir", workdir)
    assert (outcome.code, outcome.err) == (0, "")
    assert "training ends at step 4" in outcome.out
    final = runs.final(workdir)
    assert (final["step"], final["best_step"]) == (4, 2)
    folders = sorted(each.name for each in (workdir / "checkpoints").glob("[0-9]*"))
    assert folders == ["2", "4"]
    by_step = {each["step"]: each for each in runs.records(workdir)}
    assert by_step[2]["validation_log_loss"] == final["test_log_loss"]
    again = embark(*command, "--workdir", workdir, "--resume")
    assert again.code == 0
    assert runs.final(workdir) == final


def test_it_needs_a_validation_set(tmp_path):
    command = ("train", runs.write_config(tmp_path), *OPTIONS)
    outcome = embark(*command, "--workdir", tmp_path / "run")
    assert outcome.code == 1
    assert "train.early_stopping: the data have no validation set" in outcome.err
