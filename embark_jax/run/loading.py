"""A run of ``embark train``, loaded to evaluate it, to look into it, to train more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embark_jax._base.agreement import CHECKPOINT, parts
from embark_jax.checkpoint import Checkpointer
from embark_jax.checkpoint.errors import OtherExperimentError
from embark_jax.config import reading, trusted
from embark_jax.launch.processes import make_host_devices
from embark_jax.run import experiment, initial
from embark_jax.run.early_stopping import Improvement
from embark_jax.run.experiment import Experiment
from embark_jax.run.folder import CONFIG, PLAN
from embark_jax.run.saved import SavedRun
from embark_jax.train.trainer import Trainer


def load_run(
    path: str | Path,
    changes: Sequence[str] = (),
    *,
    step: int | None = None,
    trust_code: bool = False,
) -> tuple[Experiment, Trainer]:
    """Loads a checkpoint of a run into a trainer; the folder stays as it is.

    The data of the run must be there; ``load_scorer`` scores without.

    Args:
      path: folder of the run, which may be in a bucket, or one of its checkpoints.
      changes: overrides of its config, such as "mesh.nodes=1". Without any the tables
        are placed by the run's plan, with some by a new one.
      step: step of the checkpoint; None takes the best of a run that stopped early, or
        the newest that is not damaged.
      trust_code: whether to run code that the config names, from where Python finds
        it.

    Returns:
      The experiment (``config``, ``plan``, ``dataset``, and ``training_data``, whose
      samples are in the order of the run), and its trainer, which goes on from there.

    Raises:
      ConfigError: if the folder is no run's, the config names code that is not trusted,
        or there are too few devices.
      DataError: if the data are missing or damaged.
      CheckpointError: if there is no such checkpoint, it is damaged, or the changes
        make another model.
    """
    run = SavedRun(path, step)
    config = reading.load(run.folder / CONFIG, changes) if changes else run.config
    sections = config.model, config.data, config.dense_optimizer
    functions = config.train.loss, *(m.function for m in config.train.metrics.values())
    for kind in (*(section.kind for section in sections), *functions):
        trusted(run.folder, kind or "", trust_code)
    make_host_devices(config.mesh.devices)
    plan = None if changes else run.folder / PLAN
    first = initial.first_step(config, run.folder, resume=True)
    setup = experiment.build(config, plan, first_step=first)
    trainer = setup.trainer()
    agreed = CHECKPOINT if changes else (*CHECKPOINT, "compute_dtype")
    identity = parts(setup.identity, agreed)
    with Checkpointer(run.checkpoints, identity, keep=None) as checkpoints:
        try:
            trainer.load(checkpoints, run.step)
        except OtherExperimentError as error:
            raise OtherExperimentError(
                f"{error}\n`embark predict` takes rows of other files, and compares "
                "scores with their labels"
            ) from None
        factor = Improvement(config.train, checkpoints.evaluations).factor
    if factor < 1:  # the rates that the run had at this step
        trainer.use_optimizers(setup.optimizers(factor))
    return setup, trainer
