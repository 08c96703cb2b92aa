"""Checkpoints in a bucket of a local S3 server."""

import boto3
import jax
import numpy as np
import pytest

from embark_jax._base.object_store import StorageError
from embark_jax.checkpoint import Checkpointer, CheckpointError
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.checkpoint.reading import SavedCheckpoint
from tests.buckets import object_names, s3_server
from tests.builders import assert_same_tables, tables_and_states
from tests.checkpoint.states import BAD_IDS, build


@pytest.fixture
def server():
    with s3_server() as server:
        yield server


@pytest.mark.slow
def test_a_bucket_holds_checkpoints(server, tmp_path):
    """Older ones go, another plan reads them, and a damaged one is left out and written
    anew."""
    setup, trainer = build(tmp_path, "mesh.nodes=1", "mesh.gpus_per_node=2")
    where, steps, said = "s3://bucket/run", {}, []
    with Checkpointer(where, setup.identity, 2) as checkpoints:
        for step in (1, 2, 3):
            trainer.fit(setup.dataset, step)
            steps[step] = tables_and_states(trainer)
            checkpoints.save(trainer.state, step, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [2, 3]
    assert object_names("run/2/")
    assert not object_names("run/1/")
    table = "{rows: 1000, cluster: ub, column_shards: 2, hot_rows: 30}"
    _, other = build(tmp_path, f"embedding.tables.user={table}")
    with Checkpointer(where, setup.identity, None) as checkpoints:
        state, bad_ids = checkpoints.restore(other.state, other.embeddings)
    other.restore(state)
    assert bad_ids == BAD_IDS
    assert_same_tables(tables_and_states(other), steps[3])
    client = boto3.client("s3")
    name = {"Bucket": "bucket", "Key": "run/3/arrays/storages.rb_4/c/0/0/0"}
    data = bytearray(client.get_object(**name)["Body"].read())
    data[40] ^= 1
    client.put_object(**name, Body=bytes(data))
    with Checkpointer(where, setup.identity, 2, say=said.append) as checkpoints:
        state, _ = checkpoints.restore(other.state, other.embeddings)
        assert "c/0/0/0" in said[0]
        assert "Digest mismatch" in said[0]
        other.restore(state)
        assert_same_tables(tables_and_states(other), steps[2])
        checkpoints.save(other.state, 3, other.embeddings, BAD_IDS)
        assert checkpoints.steps == [2, 3]
    saved = SavedCheckpoint(CheckpointFolder(where).checkpoint(3))
    assert saved.contents.step == 3
    arrays = jax.tree.leaves(other.state.params)
    assert all(np.isfinite(array).all() for array in arrays)


@pytest.mark.slow
def test_a_bucket_that_cannot_be_used_is_told(server, tmp_path):
    setup, trainer = build(tmp_path, "mesh.nodes=1", "mesh.gpus_per_node=2")
    with pytest.raises(StorageError, match="other/run: the bucket cannot be used"):
        Checkpointer("s3://other/run", setup.identity, 1)
    with Checkpointer("s3://bucket/gone", setup.identity, 1) as checkpoints:
        checkpoints.save(trainer.state, 1, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [1]
        server.stop()
        with pytest.raises(CheckpointError, match="could not be written"):
            checkpoints.save(trainer.state, 2, trainer.embeddings, BAD_IDS)
    with pytest.raises(StorageError, match="the bucket cannot be used"):
        Checkpointer("s3://bucket/gone", setup.identity, 1)
