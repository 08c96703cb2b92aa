"""The config of a run that is resumed with another."""

from pathlib import Path

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig, reading
from embark_jax.run.folder import RunFolder
from embark_jax.run.saved import SavedRun
from tests import runs


def config(folder: Path, *overrides: str) -> ExperimentConfig:
    return reading.load(runs.write_config(folder), overrides)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run at its beginning."""
    folder = RunFolder(tmp_path)
    folder.save_config(config(tmp_path))
    return folder


def test_what_changes_is_said(run):
    assert run.changes(config(run.files)) == []
    changed = config(
        run.files, "dense_optimizer.learning_rate=0.5", "train.eval_every=2"
    )
    assert run.changes(changed) == [
        "dense_optimizer.learning_rate is 0.01 in the run so far, 0.5 here",
        "train.eval_every is nothing in the run so far, 2 here",
    ]
    (run.files / "config.yaml").unlink()
    assert run.changes(changed) == []


def test_a_run_of_another_version_is_refused_with_a_sentence(run):
    path = run.files / "config.yaml"
    path.write_text(path.read_text() + "ragged: true\n")
    with pytest.raises(ConfigError, match=r"another version .*ragged: unknown key"):
        SavedRun(run.path)
