"""The seed of a run is not that of synthetic data: seeds of a search compare."""

import numpy as np
import pytest

from embark_jax.config import reading
from embark_jax.run import experiment
from tests import runs

ONE_DEVICE = "mesh.nodes=1", "mesh.gpus_per_node=1"


@pytest.fixture
def build(tmp_path):
    path = runs.write_config(tmp_path)
    return lambda *overrides: experiment.build(
        reading.load(path, [*ONE_DEVICE, *overrides])
    )


def samples(setup) -> np.ndarray:
    return setup.dataset.train_batch(0, 100).dense


def test_the_seed_of_a_run_leaves_synthetic_data_as_they_are(build):
    first, other = build("seed=0"), build("seed=1")
    np.testing.assert_array_equal(samples(first), samples(other))
    assert first.dataset.bayes_auc() == other.dataset.bayes_auc()
    assert first.identity["seed"] != other.identity["seed"]


def test_their_own_seed_changes_them_and_what_a_checkpoint_belongs_to(build):
    first, other = build("data.seed=0"), build("data.seed=1")
    assert (samples(first) != samples(other)).any()
    changed = {k for k in first.identity if first.identity[k] != other.identity[k]}
    assert changed == {"data", "data_seed"}
