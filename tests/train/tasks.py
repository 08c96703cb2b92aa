"""A model of two tasks, its batches and its trainer."""

import dataclasses

import numpy as np
from flax import nnx

from embark_jax import models
from embark_jax.config.models import section_of
from embark_jax.embedding.device_batch import own_samples
from embark_jax.train.losses import BinaryCrossEntropy
from tests.builders import SMALL_BATCH, SMALL_DATA, losses, small_trainer

WEIGHTS = 1.0, 0.25


def batch_of(step):
    batch = SMALL_DATA.train_batch(step, SMALL_BATCH)
    second = (batch.ids["a"][:, 0] % 2).astype(np.float32)
    labels = np.stack([batch.labels, second], axis=1)
    return dataclasses.replace(batch, labels=labels)


def tasks_trainer(model, gpus=1, micro_batches=1):
    loss = BinaryCrossEntropy(task_weights=WEIGHTS)
    return small_trainer(model, gpus, micro_batches, loss=loss)


def mmoe():
    config = section_of("mmoe")(
        tasks=("click", "like"), experts=2, expert=(4,), tower=(3,)
    )
    return models.build(config, {"a": (4,), "b": (4,)}, 1, nnx.Rngs(0))


def trained() -> list[float]:
    """Losses of three steps on two devices, then AUC and log loss of each task; of the
    samples of this process's devices."""
    trainer = tasks_trainer(mmoe(), gpus=2)
    batches = [batch_of(step) for step in range(3)]
    own = [own_samples(batch, SMALL_BATCH) for batch in batches]
    values = [loss for _, loss in losses(trainer.iterate_batches(own))]
    for task in trainer.evaluate(batches).tasks:
        values += task.auc, task.log_loss
    return values
