"""One compiled trainer for many tests."""

import jax
import pytest

from embark_jax.train.state import TrainState
from embark_jax.train.trainer import Trainer
from tests.builders import losses, snapshot
from tests.train.trainers import Clicks, clicks_trainer


@pytest.fixture(scope="module")
def compiled() -> tuple[Trainer, TrainState]:
    """A trainer for many tests, and its initial state."""
    trainer = clicks_trainer()
    return trainer, snapshot(trainer)


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
