"""A run of ``embark train``, loaded to inspect it, to search with it, to train more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embark_jax.checkpoint import Checkpointer
from embark_jax.config import ExperimentConfig, reading, trusted
from embark_jax.data import Dataset
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.launch.processes import make_host_devices
from embark_jax.plans.plan import Plan
from embark_jax.run import experiment, history, initial
from embark_jax.run.early_stopping import Plateau
from embark_jax.run.experiment import Experiment, named_code
from embark_jax.run.folder import RunFolder
from embark_jax.run.saved import best_step, read_config
from embark_jax.train.optimizers import build_optimizers
from embark_jax.train.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run with a checkpoint of its own loaded; its folder stays as it is.

    Attributes:
      folder: folder of the run; of one in a bucket, the copy of its other files.
      setup: the experiment that its config describes.
      trainer: trainer with the state of the checkpoint, on the devices of the plan.
    """

    folder: Path
    setup: Experiment
    trainer: Trainer

    @property
    def config(self) -> ExperimentConfig:
        """The config of the run, with the changes that it was loaded with."""
        return self.setup.config

    @property
    def plan(self) -> Plan:
        """The plan of the tables, as the trainer has it."""
        return self.trainer.embeddings.plan

    @property
    def embeddings(self) -> EmbeddingCollection:
        """The embedding tables, as the trainer has them."""
        return self.trainer.embeddings

    @property
    def model(self) -> Any:
        """A copy of the dense model with its trained variables, as ``Trainer.model``
        gives it."""
        return self.trainer.model

    @property
    def data(self) -> Dataset:
        """The data, with the training samples in the order of the run."""
        return self.setup.training_data


def load_run(
    path: str | Path,
    changes: Sequence[str] = (),
    *,
    step: int | None = None,
    trust_code: bool = False,
) -> LoadedRun:
    """Loads the config, plan and a checkpoint of a run into a trainer.

    The data of the run must be there; ``load_scorer`` scores without.

    Args:
      path: folder of the run, which may be in a bucket.
      changes: overrides of its config, such as "mesh.nodes=1", of keys that may change
        when a run is resumed. Without any the tables are placed by the run's plan, with
        some by a new one.
      step: step of the checkpoint; None takes the best of a run that stopped early, or
        the newest that is not damaged.
      trust_code: whether to run code that the config names, from where Python finds
        it.

    Raises:
      ConfigError: if the folder is no run's, a key must not change, the config names
        code that is not trusted, or there are too few devices.
      DataError: if the data are missing or damaged.
      CheckpointError: if there is no such checkpoint, or it is damaged.
    """
    run = RunFolder(path)
    folder = run.read()
    config = read_config(folder)
    for kind in named_code(config):
        trusted(folder, kind, trust_code)
    if changes:
        config = reading.load(folder / history.CURRENT, changes)
        history.changes(folder, config)
    make_host_devices(config.mesh.devices)
    setup = experiment.build(config, None if changes else folder / "plan.json")
    first = initial.first_step(config, folder, resume=True)
    setup = dataclasses.replace(setup, first_step=first)
    trainer = setup.trainer()
    with Checkpointer(run.checkpoints, setup.identity, keep=None) as checkpoints:
        trainer.load(checkpoints, best_step(folder) if step is None else step)
        plateau = Plateau(config.train.plateau, checkpoints.evaluations)
    if plateau.factor < 1:  # the rates that the run had at this step
        optimizers = build_optimizers(config, setup.steps, plateau.factor)
        trainer.use_optimizers(optimizers)
    return LoadedRun(folder, setup, trainer)
