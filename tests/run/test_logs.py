"""The metrics log: what is on disk after writes, kills and resumes."""

import json
import math
import pathlib
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import SessionLog

from embark_jax._base.config import ConfigError
from embark_jax.run.logs import LogError, MetricsLog, read_metrics
from tests.runs import events


def lines(workdir):
    text = (workdir / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def write_steps(workdir, *steps, resume_at=0):
    with MetricsLog(workdir, resume_at=resume_at) as log:
        for step in steps:
            log.write(step, {"loss": step / 10})


def test_a_line_is_on_disk_when_write_returns_with_plain_numbers(tmp_path):
    """Those of NumPy and JAX, too; what JSON lacks is text that ``float`` reads."""
    given = {"auc": None, "note": "x", "final": True, "n": 3}
    arrays = {
        "a": np.float32(0.1),
        "b": jnp.asarray(2),
        "c": np.array(True),
        "d": jnp.asarray(1.5, jnp.bfloat16),
        "e": math.nan,
        "f": np.float32(-math.inf),
    }
    with MetricsLog(tmp_path / "deep" / "run") as log:
        log.write(5, given | arrays)
        (line,) = lines(tmp_path / "deep" / "run")
    plain = {"a": float(np.float32(0.1)), "b": 2, "c": True, "d": 1.5}
    assert line == {"step": 5, **given, **plain, "e": "nan", "f": "-inf"}
    assert [type(line[name]) for name in "abcd"] == [float, int, bool, float]


def test_what_was_written_is_read_also_while_a_line_is_being_written(tmp_path):
    with pytest.raises(LogError, match="holds no metrics"):
        read_metrics(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.write(5, {"loss": -math.inf, "auc": None, "note": "x"})
        log.write(6, {"loss": math.nan})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    first, second = read_metrics(tmp_path)
    assert first == {"step": 5, "loss": -math.inf, "auc": None, "note": "x"}
    assert math.isnan(second["loss"])


def test_resume_drops_what_came_later_and_only_that(tmp_path):
    write_steps(tmp_path, 10, 20, 30)
    write_steps(tmp_path, 30, 40, resume_at=20)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 30, 40]
    assert [path.name for path in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", [1, 2, 12, 23])
def test_a_line_torn_by_a_kill_is_dropped(tmp_path, cut):
    write_steps(tmp_path, 10, 20)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    write_steps(tmp_path, 30, resume_at=20)
    assert [line["step"] for line in lines(tmp_path)] == [10, 30]


@pytest.mark.parametrize("damage", ["{", "[1]", '{"loss": 1}', '{"step": "x"}'])
def test_damage_elsewhere_is_said(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + damage + '\n{"step": 3}\n')
    message = r"metrics.jsonl, line 2: .* must be a JSON object with a step; delete"
    with pytest.raises(LogError, match=message):
        read_metrics(tmp_path)
    with pytest.raises(LogError, match=message):
        MetricsLog(tmp_path, resume_at=3)


def test_a_kill_while_rewriting_leaves_the_old_log(tmp_path, monkeypatch):
    write_steps(tmp_path, 10, 20, 30)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            MetricsLog(tmp_path, resume_at=20)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    write_steps(tmp_path, 30, resume_at=20)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 30]


def test_tensorboard_hides_what_came_after_the_step_of_resume(tmp_path):
    write_steps(tmp_path, 10, 20, 30)
    write_steps(tmp_path, 30, resume_at=20)
    starts = [
        event.step
        for event in events(tmp_path)
        if event.session_log.status == SessionLog.START
    ]
    assert 21 in starts


def test_weights_and_biases_get_the_numbers_and_go_on(tmp_path, monkeypatch):
    """By a stand-in for the package; a run that resumes has the id that it had."""
    calls = []

    class Run:
        def log(self, numbers, step):
            calls.append((step, numbers))

        def finish(self):
            calls.append("finished")

    def init(**options):
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for step in (0, 5):
        with MetricsLog(tmp_path / "a", step, loggers=["wandb"]) as log:
            log.write(step + 5, {"loss": 0.5, "note": "x", "auc": None})
    first, logged, _, again, *_ = calls
    assert first.pop("resume") is None
    assert again.pop("resume") == "allow"
    assert first == again
    assert (first["dir"], first["name"]) == (tmp_path / "a", "a")
    assert logged == (5, {"loss": 0.5})
    assert calls[-2:] == [(10, {"loss": 0.5}), "finished"]
    assert not (tmp_path / "a" / "tensorboard").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'embark_jax\[wandb\]'"):
        MetricsLog(tmp_path / "b", loggers=["wandb"])
