"""Trials of sweeps and searches that are not trained."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from embark_jax.config import ExperimentConfig, reading
from embark_jax.run import training
from embark_jax.train.outcome import NonFiniteLossError

CONFIG = """\
name: tiny
data: {kind: synthetic, dense_features: 2, train_samples: 256, test_samples: 64}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4, tables: {user: {rows: 50}}}
train: {batch_size: 32, steps: 2}
"""


def train_in_name(
    monkeypatch: pytest.MonkeyPatch,
    records: Callable[[ExperimentConfig], list[dict] | None],
) -> list[str]:
    """Puts something in the place of training that leaves a run's folder at once.

    Args:
      records: what a run of a config logs, the final record last; None diverges.

    Returns:
      Names of the folders of the runs that begin from now on.
    """
    folders = []

    def train(config, workdir, resume, console):
        assert resume == workdir.exists()
        folders.append(workdir.name)
        workdir.mkdir(exist_ok=True)
        reading.save(config, workdir / "config.yaml")
        logged = records(config)
        if logged is None:
            raise NonFiniteLossError("loss is nan at step 2\nthe batch: ...")
        text = "".join(json.dumps(record) + "\n" for record in logged)
        (workdir / "metrics.jsonl").write_text(text)
        return logged[-1]

    monkeypatch.setattr(training, "train", train)
    return folders


def rows(workdir: Path) -> list[dict[str, str]]:
    """Of the table of results."""
    with (workdir / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))
