"""The metrics of a run in Weights & Biases or MLflow, beside its own files.

Both are optional extras: ``pip install 'embark_jax[wandb]'``, ``'embark_jax[mlflow]'``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from embark_jax._base.config import ConfigError
from embark_jax._base.files import replacing
from embark_jax.plans.options import Service

PROJECT = "embark_jax"
"""Project in Weights & Biases, experiment in MLflow, unless the environment variables
WANDB_PROJECT and MLFLOW_EXPERIMENT_NAME name others."""


class Tracker(Protocol):
    """A run in a service."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends numbers at a step."""
        ...

    def close(self) -> None:
        """Ends the run, or the part of it up to here."""
        ...


def open_tracker(service: Service, workdir: Path, config: Mapping[str, Any]) -> Tracker:
    """Begins a run in a service, or continues the one that ``workdir`` began.

    Args:
      service: the service; its package, its server and its login are the user's.
      workdir: folder of the run, which keeps the run's number in ``SERVICE.id``.
      config: config of the run, which has a ``name``.

    Raises:
      ConfigError: if the package is not installed.
    """
    try:
        module = importlib.import_module(service)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"train.trackers: {service} is not installed: "
            f"pip install 'embark_jax[{service}]'"
        ) from error
    number_file = workdir / f"{service}.id"
    number = number_file.read_text("utf-8") if number_file.exists() else None
    tracker = {"wandb": _WandB, "mlflow": _MLflow}[service](module, number, config)
    with replacing(number_file) as scratch:
        scratch.write_text(tracker.number, "utf-8")
    return tracker


class _WandB:
    """https://docs.wandb.ai/ref/python."""

    def __init__(self, wandb: Any, number: str | None, config: Mapping[str, Any]):
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=config["name"],
            id=number,
            resume="allow",
            config=dict(config),
        )
        self.number: str = self._run.id

    def log(self, step, values):
        self._run.log(dict(values), step=step)

    def close(self):
        self._run.finish()


class _MLflow:
    """https://mlflow.org/docs/latest/python_api/mlflow.html."""

    def __init__(self, mlflow: Any, number: str | None, config: Mapping[str, Any]):
        self._mlflow = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self._run = mlflow.start_run(run_id=number, run_name=config["name"])
        self.number: str = self._run.info.run_id
        if number is None:
            mlflow.log_dict(dict(config), "config.json")

    def log(self, step, values):
        # A name in MLflow has no "@".
        named = {name.replace("@", "_at_"): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self):
        self._mlflow.end_run()
