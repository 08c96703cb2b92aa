"""Checkpoints of tables in 16 bits."""

import jax
import numpy as np
import pytest

from embark_jax.checkpoint import Checkpointer, CheckpointError
from embark_jax.run.saved import SavedModel, open_checkpoint
from tests.builders import assert_same_tables, tables_and_states
from tests.checkpoint.states import BAD_IDS, build


@pytest.mark.slow
def test_sixteen_bits_are_kept_and_go_on_alike(tmp_path):
    """Resumed by the same plan all is as if it had never stopped; another plan reads
    the same rows, float32 takes none of them, and an export holds them exactly."""
    narrow = "embedding.dtype=bfloat16"
    setup, trainer = build(tmp_path, narrow)
    with Checkpointer(tmp_path / "run", setup.identity, keep=2) as checkpoints:
        trainer.fit(setup.dataset, 2)
        expected = tables_and_states(trainer)
        checkpoints.save(trainer.state, 2, trainer.embeddings, BAD_IDS)
        trainer.fit(setup.dataset, 4)
    assert expected["user", "weights"].dtype == np.dtype("bfloat16")
    for overrides in ((), ("embedding.tables.user={rows: 1000, cluster: ub}",)):
        _, again = build(tmp_path, narrow, *overrides)
        with Checkpointer(tmp_path / "run", setup.identity, keep=None) as checkpoints:
            state, _ = checkpoints.restore(again.state, again.embeddings, 2)
        again.restore(state)
        assert_same_tables(tables_and_states(again), expected)
        if not overrides:
            again.fit(setup.dataset, 4)
            jax.tree.map(np.testing.assert_array_equal, again.state, trainer.state)
    other, float32 = build(tmp_path)
    with (
        Checkpointer(tmp_path / "run", other.identity, keep=None) as checkpoints,
        pytest.raises(CheckpointError, match="dtype"),
    ):
        checkpoints.restore(float32.state, float32.embeddings, 2)
    saved = SavedModel(open_checkpoint(tmp_path / "run", 2))
    (user,) = (each for each in saved.tables if each.name == "user")
    assert user.dtype == "bfloat16"
    rows = saved.table(user)
    np.testing.assert_array_equal(rows, expected["user", "weights"].astype(np.float32))
