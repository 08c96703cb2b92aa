"""What Weights & Biases and MLflow are told, by stand-ins of their packages."""

import sys
import types

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.run.logs import MetricsLog
from embark_jax.run.trackers import open_tracker

CONFIG = {"name": "run", "seed": 3}


class Told(list):
    """The calls of a stand-in."""

    def note(self, name, result=None):
        def call(*args, **options):
            self.append((name, *args, options))
            return result

        return call


@pytest.fixture
def told(monkeypatch) -> Told:
    told = Told()
    run = types.SimpleNamespace(id="w7", log=told.note("log"), finish=told.note("end"))
    wandb = types.SimpleNamespace(init=told.note("init", run))
    active = types.SimpleNamespace(info=types.SimpleNamespace(run_id="m9"))
    mlflow = types.SimpleNamespace(
        set_experiment=told.note("set"),
        start_run=told.note("start", active),
        log_dict=told.note("config"),
        log_metrics=told.note("log"),
        end_run=told.note("end"),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return told


def test_wandb_gets_all_numbers_and_a_resumed_run_goes_on(told, tmp_path):
    tracker = open_tracker("wandb", tmp_path, CONFIG)
    with MetricsLog(tmp_path, trackers=[tracker]) as log:
        log.write(5, {"loss": 0.5, "final": True, "test_auc": None})
    open_tracker("wandb", tmp_path, CONFIG)
    begun, logged, ended, again = told
    assert begun[-1]["config"] == CONFIG
    assert begun[-1]["id"] is None
    assert logged == ("log", {"loss": 0.5}, 5, {})
    assert ended[0] == "end"
    assert again[-1]["id"] == "w7"


def test_mlflow_gets_all_numbers_and_a_resumed_run_goes_on(told, tmp_path):
    tracker = open_tracker("mlflow", tmp_path, CONFIG)
    with MetricsLog(tmp_path, trackers=[tracker]) as log:
        log.write(2, {"test_mrr@10": 0.25})
    open_tracker("mlflow", tmp_path, CONFIG)
    assert [each[0] for each in told] == [
        "set",
        "start",
        "config",
        "log",
        "end",
        "set",
        "start",
    ]
    assert told[3] == ("log", {"test_mrr_at_10": 0.25}, {"step": 2})
    assert told[1][-1] == {"run_id": None, "run_name": "run"}
    assert told[6][-1] == {"run_id": "m9", "run_name": "run"}


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'embark_jax\[wandb\]'"):
        open_tracker("wandb", tmp_path, CONFIG)
