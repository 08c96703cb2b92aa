"""The configs of a run that is resumed with others."""

from pathlib import Path

import pytest

from embark_jax.config import ExperimentConfig, reading
from embark_jax.run.folder import RunFolder
from tests import runs


def config(folder: Path, *overrides: str) -> ExperimentConfig:
    return reading.load(runs.write_config(folder), overrides)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run at its beginning."""
    folder = RunFolder(tmp_path)
    folder.save_config(config(tmp_path), 0)
    return folder


def rates(run: RunFolder) -> dict[str, float]:
    """The learning rate of each config in the folder."""
    return {
        path.name: reading.load(path).dense_optimizer.learning_rate
        for path in run.files.glob("config*.yaml")
    }


def save(run: RunFolder, rate: float, *, at: int) -> None:
    changed = config(run.files, f"dense_optimizer.learning_rate={rate}")
    run.save_config(changed, at)


def test_the_config_before_a_change_stays(run):
    save(run, 0.01, at=5)  # nothing is new
    assert rates(run) == {"config.yaml": 0.01}
    save(run, 0.5, at=5)
    save(run, 0.2, at=9)
    save(run, 0.2, at=12)
    assert rates(run) == {
        "config-until-5.yaml": 0.01,
        "config-until-9.yaml": 0.5,
        "config.yaml": 0.2,
    }
    save(run, 0.1, at=9)  # killed before it came to a checkpoint
    assert rates(run)["config-until-9.yaml"] == 0.5


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
