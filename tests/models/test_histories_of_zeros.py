"""Which places of a history hold an event is said by ids, not by rows of zeros."""

import jax
import numpy as np
import pytest

from embark_jax.config import reading
from embark_jax.run import experiment
from tests.models.histories import write_config


@pytest.mark.slow
def test_rows_that_begin_as_zeros_learn(tmp_path):
    run = experiment.build(reading.load(write_config("din", tmp_path)))
    trainer = run.trainer()

    def zeros():
        storages = jax.tree.map(np.asarray, trainer.state.storages)
        return sum(int((~rows.any(axis=1)).sum()) for rows in storages.values())

    before = zeros()
    assert before >= 50
    for _ in trainer.iterate(run.dataset, 1):
        pass
    assert zeros() < before
