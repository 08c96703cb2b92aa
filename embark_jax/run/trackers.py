"""The metrics of a run in Weights & Biases or MLflow, beside its own files.

Both are optional extras: ``pip install 'embark_jax[wandb]'``, ``'embark_jax[mlflow]'``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embark_jax._base.config import ConfigError
from embark_jax.plans.options import Service

PROJECT = "embark_jax"
"""Project in Weights & Biases, experiment in MLflow, unless the environment variables
WANDB_PROJECT and MLFLOW_EXPERIMENT_NAME name others."""


class Tracker(NamedTuple):
    """A run in a service: ``log`` sends numbers at a step, ``close`` ends the run, or
    the part of it up to here."""

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


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
        package = importlib.import_module(service)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"train.trackers: {service} is not installed: "
            f"pip install 'embark_jax[{service}]'"
        ) from error
    file, name = workdir / f"{service}.id", config["name"]
    number = file.read_text("utf-8") if file.exists() else None

    if service == "wandb":  # https://docs.wandb.ai/ref/python
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        run = package.init(
            project=project, name=name, id=number, resume="allow", config=dict(config)
        )
        file.write_text(run.id, "utf-8")
        return Tracker(run.log, run.finish)

    def log(values: Mapping[str, float], step: int) -> None:
        named = {name.replace("@", "_at_"): x for name, x in values.items()}  # no "@"
        package.log_metrics(named, step=step)

    # https://mlflow.org/docs/latest/python_api/mlflow.html
    package.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    run = package.start_run(run_id=number, run_name=name)
    if number is None:
        package.log_dict(dict(config), "config.json")
    file.write_text(run.info.run_id, "utf-8")
    return Tracker(log, package.end_run)
