"""Which places of a history hold an event is said by ids, not by rows of zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax.config import reading
from embark_jax.models import DIN
from embark_jax.models.packed import Masked
from embark_jax.run import experiment
from tests.models import oracle
from tests.models.histories import KINDS, write_config
from tests.thorough import thorough


@pytest.mark.parametrize("kind", thorough(KINDS, ["din"]))
def test_rows_that_begin_as_zeros_learn(kind, tmp_path):
    run = experiment.build(reading.load(write_config(kind, tmp_path)))
    trainer = run.trainer()

    def zeros():
        storages = jax.tree.map(np.asarray, trainer.state.storages)
        return sum(int((~rows.any(axis=1)).sum()) for rows in storages.values())

    before = zeros()
    assert before >= 50
    for _ in trainer.iterate(run.dataset, 1):
        pass
    assert zeros() < before


def test_a_history_counts_by_its_mask():
    """A row of zeros is an event, and padding is none whatever its row is."""
    model = DIN({"past": (2, 4), "now": (4,)}, 0, {"past": "now"}, rngs=nnx.Rngs(0))
    model.eval()
    rng = np.random.default_rng(0)
    past = rng.normal(size=(3, 2, 4)).astype(np.float32)
    now = rng.normal(size=(3, 4)).astype(np.float32)
    valid = np.array([[True, False], [False, False], [True, True]])

    past[2, 1] = 0
    embeddings = {"past": Masked(jnp.asarray(past), jnp.asarray(valid)), "now": now}
    logits = model(np.zeros((3, 0)), embeddings)
    layers = nnx.to_pure_dict(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), layers)
    expected = oracle.din(
        layers, np.zeros((3, 0)), embeddings, "float32", {"past": "now"}
    )
    np.testing.assert_allclose(logits, expected.value[:, 0], rtol=1e-5)
