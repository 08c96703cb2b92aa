"""When training stops early: on made-up curves, and in a run."""

import re
from pathlib import Path

import pytest

from embark_jax.config import TrainConfig
from embark_jax.data import SyntheticClicks
from embark_jax.export import load_id_scorer
from embark_jax.report.curves import MARKERS, run_curves
from embark_jax.run.early_stopping import Improvement
from embark_jax.run.loading import load_run
from embark_jax.run.logs import read_metrics
from tests import runs
from tests.runs import done


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
def test_training_ends_where_a_curve_no_longer_improves(
    config, curve, best_step, ended_at
):
    key = f"validation_{config['metric']}"
    records = [{"step": step, key: value} for step, value in enumerate(curve, 1)]
    train = TrainConfig.model_validate({"early_stopping": config, "eval_every": 1})
    stopping, ended = Improvement(train), None
    for record in records:
        stopping.add(record)
        if stopping.ended:
            ended = record["step"]
            break
    assert (stopping.best_step, ended) == (best_step, ended_at)
    # A run that resumes anywhere between goes on as if it had never been interrupted.
    for cut in range(ended or len(curve)):
        resumed = Improvement(train, records[:cut])
        for record in records[cut : ended or len(curve)]:
            resumed.add(record)
        assert str(resumed) == str(stopping)


@pytest.mark.parametrize(
    ("config", "curve", "factors"),
    [
        ({}, [0.5, 0.6, 0.6, 0.7, 0.6, 0.6], [1, 1, 0.1, 0.1, 0.01, 0.001]),
        ({"patience": 2}, [0.5, 0.4, 0.4, 0.4, 0.4], [1, 1, 0.1, 0.1, 0.01]),
        (
            {"metric": "log_loss", "factor": 0.5, "least": 0.3},
            [0.7, 0.8, 0.6, 0.9, 0.9],
            [1, 0.5, 0.5, 0.3, 0.3],
        ),
    ],
)
def test_rates_are_lowered_on_a_plateau(config, curve, factors):
    train = TrainConfig.model_validate({"plateau": config, "eval_every": 1})
    plateau = Improvement(train)
    key = f"validation_{config.get('metric', 'auc')}"
    records = [{"step": step, key: value} for step, value in enumerate(curve, 1)]
    found, before = [], 1.0
    for record in records:
        assert plateau.add(record) == (plateau.factor < before)
        found.append(before := plateau.factor)
    assert found == pytest.approx(factors)
    for cut in range(len(curve)):  # resumed
        resumed = Improvement(train, records[:cut])
        for record in records[cut:]:
            resumed.add(record)
        assert resumed.factor == pytest.approx(factors[-1])


def test_an_evaluation_without_the_metric_does_not_count():
    train = {"early_stopping": {"patience": 2}, "plateau": {}, "eval_every": 1}
    stopping = Improvement(TrainConfig.model_validate(train))
    for step, auc in enumerate([None, 0.7, None, 0.6, None], 1):
        stopping.add({"step": step, "validation_auc": auc})
        assert not stopping.ended
    assert stopping.best_step == 2
    stopping.add({"step": 6, "validation_auc": 0.6})
    assert stopping.ended


OPTIONS = (
    "train.steps=8",
    "train.eval_every=2",
    "train.keep_checkpoints=1",
    # No evaluation is better than the first by so much.
    "train.early_stopping={patience: 1, min_change: 1}",
)


def flip_last(log: Path) -> None:
    """Changes a digit of the last evaluation: a log is for people, and no run resumes
    otherwise because of it."""
    before, after = log.read_text().rsplit('"validation_auc": 0', 1)
    log.write_text(f'{before}"validation_auc": 9{after}')


@pytest.mark.slow
def test_the_best_step_is_kept_and_evaluated(tmp_path, monkeypatch):
    monkeypatch.setattr(
        SyntheticClicks, "validation_batches", SyntheticClicks.test_batches
    )
    config, workdir = runs.write_config(tmp_path), tmp_path / "run"
    command = ("train", config, *OPTIONS, "train.checkpoint_every=4")
    outcome = done(*command, "--workdir", workdir)
    assert "training ends at step 4" in outcome.out
    final = runs.final(workdir)
    assert (final["step"], final["best_step"], final["test_step"]) == (4, 2, 2)
    folders = sorted(each.name for each in (workdir / "checkpoints").glob("[0-9]*"))
    assert folders == ["2", "4"]
    by_step = {each["step"]: each for each in runs.records(workdir)}
    assert by_step[2]["validation_log_loss"] == final["test_log_loss"]
    flip_last(workdir / "metrics.jsonl")
    done(*command, "--workdir", workdir, "--resume")
    assert runs.final(workdir) == final
    # Whoever takes the run up takes this step, says so, and takes another if asked.
    auc = f"{final['test_auc']:.5f}"
    of_best = done("evaluate", workdir).out
    assert re.search(r"step\W+2\W", of_best)
    assert auc in of_best
    of_last = done("evaluate", workdir, "--step", 4).out
    assert re.search(r"step\W+4\W", of_last)
    assert auc not in of_last
    assert load_id_scorer(workdir).step == load_run(workdir)[1].step == 2
    assert load_run(workdir, step=4)[1].step == 4
    exported = done("export", workdir, "--no-onnx", "--out", tmp_path / "export").out
    assert "model of step 2 written" in exported
    # The mark of the test set lies where its step is.
    curves = run_curves(read_metrics(workdir))
    (mark,) = [
        line for line in curves.axes[1].lines if line.get_marker() == MARKERS["test"]
    ]
    assert mark.get_xdata().tolist() == [2]
    assert mark.get_ydata().tolist() == [final["test_auc"]]


@pytest.mark.slow
def test_lower_rates_train_and_resume_alike(tmp_path, monkeypatch):
    """After a plateau, steps are those of the lowered rates, also in a run that was cut
    and resumed."""
    monkeypatch.setattr(
        SyntheticClicks, "validation_batches", SyntheticClicks.test_batches
    )
    options = [
        "train.steps=8",
        "train.eval_every=2",
        "train.checkpoint_every=2",
        "train.plateau={min_change: 1, factor: 0.5, patience: 1}",
        "embedding.optimizer.kind=sgd",
        "dense_optimizer.kind=sgd",
        "mesh.nodes=1",
        "mesh.gpus_per_node=1",
    ]
    config, whole, cut = runs.write_config(tmp_path), tmp_path / "a", tmp_path / "b"
    outcome = done("train", config, *options, "--workdir", whole)
    assert "step 4: learning rates: 0.5 of what they were" in outcome.out
    assert "step 8: learning rates: 0.125 of what they were" in outcome.out
    done("train", config, *options, "train.steps=6", "--workdir", cut)
    flip_last(cut / "metrics.jsonl")
    done("train", config, *options, "--workdir", cut, "--resume")
    assert runs.losses(cut) == runs.losses(whole)
    # By hand: three steps more, from step 4, with half the rates.
    half = [
        "embedding.optimizer.learning_rate=0.005",
        "train.plateau=null",
        "dense_optimizer.learning_rate=0.005",
        "train.steps=6",
        "--resume",
    ]
    by_hand = tmp_path / "c"
    first = [*options, "train.plateau=null", "train.steps=4", "--workdir", by_hand]
    done("train", config, *first)
    outcome = done("train", config, *options, *half, "--workdir", by_hand)
    found, expected = runs.losses(by_hand), runs.losses(whole)
    assert {step: expected[step] for step in found} == pytest.approx(found, rel=1e-6)
