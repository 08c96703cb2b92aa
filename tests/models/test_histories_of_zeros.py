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

CONFIG = """\
data: {kind: synthetic, dense_features: 1, train_samples: 64, test_samples: 32}
model: {kind: MODEL, history: {past: now}}
embedding:
  dim: 8
  tables: {past: {rows: 50, init_scale: 0.0}, now: {rows: 50}}
  features: {past: {hotness: 3, pooling: none}, now: {}}
  optimizer: {kind: sgd, learning_rate: 1.0}
train: {batch_size: 32, steps: 1}
mesh: {nodes: 1, gpus_per_node: 2}
"""


@pytest.mark.parametrize("kind", ["din", "hstu", "tbsm"])
def test_rows_that_begin_as_zeros_learn(kind, tmp_path):
    path = tmp_path / "config.yaml"
    text = CONFIG.replace("MODEL", kind)
    if kind == "tbsm":
        text = text.replace("past: now}}", "past: now}, bottom: [8]}")
    path.write_text(text)
    run = experiment.build(reading.load(path))
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
    now = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    valid = np.array([[True, False], [False, False], [True, True]])

    def logits(past):
        return model(jnp.zeros((3, 0)), {"past": past, "now": now})

    masked = logits(Masked(jnp.asarray(past), jnp.asarray(valid)))
    without = np.where(valid[..., None], past, 0)
    np.testing.assert_allclose(masked, logits(jnp.asarray(without)), rtol=1e-6)
