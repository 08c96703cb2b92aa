"""One compiled trainer for many tests."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from embark_jax.train.state import TrainState
from embark_jax.train.trainer import Trainer
from tests.train.trainers import (
    Clicks,
    losses,
    make_trainer,
    snapshot,
)


@pytest.fixture(scope="module")
def compiled() -> tuple[Trainer, TrainState]:
    """A trainer for many tests, and its initial state."""
    trainer = make_trainer()
    return trainer, jax.tree.map(np.array, trainer.state)


def at_the_start(compiled: tuple[Trainer, TrainState]) -> Trainer:
    trainer, initial = compiled
    shardings = jax.tree.map(lambda each: each.sharding, trainer.state)
    trainer.restore(jax.device_put(initial, shardings))
    return trainer


@pytest.fixture
def trainer(compiled) -> Trainer:
    return at_the_start(compiled)


@pytest.fixture(scope="module")
def undisturbed(compiled):
    """Losses, and the state after 0 to 10 steps, with no step in flight meanwhile."""
    trainer = at_the_start(compiled)
    found, states = [], [snapshot(trainer)]
    for step in range(1, 11):
        found += losses(trainer.iterate(Clicks(), step))
        states.append(snapshot(trainer))
    return found, states
