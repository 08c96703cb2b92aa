"""Checkpoints that Orbax wrote are refused, and read once they are converted."""

from __future__ import annotations

import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from embark_jax.checkpoint import Checkpointer, CheckpointError
from embark_jax.checkpoint.version_0 import convert
from embark_jax.config import reading
from embark_jax.embedding.logical import export_table
from embark_jax.run import experiment
from tests import runs


def write_version_0(folder, setup, trainer):
    """As version 0 did: tables padded with zeros to a multiple of the devices."""
    state, tables = trainer.state, {}
    for table in setup.tables:
        arrays = {"weights": state.storages} | {
            kind: {name: each[kind] for name, each in state.embedding_state.items()}
            for kind in next(iter(state.embedding_state.values()))
        }
        tables[table.name] = {
            kind: np.pad(
                export_table(trainer.embeddings, each, table.name), ((0, 3), (0, 0))
            )
            for kind, each in arrays.items()
        }
    dense = {"params": state.params, "dense_state": state.dense_state}
    run = {"step": 4, "identity": setup.identity, "bad_ids": {"user": 2}}
    with ocp.CheckpointManager(folder) as manager:
        manager.save(
            4,
            args=ocp.args.Composite(
                dense=ocp.args.PyTreeSave(dense),
                tables=ocp.args.PyTreeSave(tables),
                run=ocp.args.JsonSave(run),
            ),
        )


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    setup = experiment.build(reading.load(runs.write_config(folder)))
    trainer = setup.trainer()
    trainer.fit(setup.dataset, 4)
    write_version_0(folder / "checkpoints", setup, trainer)
    return folder / "checkpoints", setup, trainer


def test_version_0_is_refused_with_the_command_that_converts_it(old):
    folder, setup, trainer = old
    with (
        Checkpointer(folder, setup.identity, keep=None) as checkpoints,
        pytest.raises(CheckpointError) as caught,
    ):
        checkpoints.restore(trainer.state, trainer.embeddings)
    assert str(caught.value) == (
        f"{folder / '4'}: is of version 0, which Orbax wrote; "
        f"embark checkpoint convert {folder} makes it one of this version"
    )


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_converted_is_what_was_saved(old, tmp_path, killed):
    folder, setup, trainer = old
    copied = shutil.copytree(folder, tmp_path / "checkpoints")
    if killed:  # when it was put aside, and some of the new one was written
        (copied / "4").rename(copied / "4.orbax")
        (copied / "4.tmp").mkdir()
        with pytest.raises(CheckpointError, match="embark checkpoint convert"):
            Checkpointer(copied, setup.identity, keep=None).steps  # noqa: B018
    outcome = runs.embark("checkpoint", "convert", copied)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{copied / '4'} is converted" in outcome.out
    assert [path.name for path in copied.iterdir() if path.name[0].isdigit()] == ["4"]
    expected = jax.tree.map(np.array, trainer.state)
    with Checkpointer(copied, setup.identity, keep=None) as checkpoints:
        state, bad_ids = checkpoints.restore(trainer.state, trainer.embeddings)
    trainer.restore(state)
    jax.tree.map(np.testing.assert_array_equal, trainer.state, expected)
    assert bad_ids == {"user": 2}


def test_there_must_be_something_to_convert(tmp_path):
    runs.assert_refused(
        runs.embark("checkpoint", "convert", tmp_path),
        f"{tmp_path}: has no checkpoint of version 0",
    )
    with pytest.raises(CheckpointError, match="no such folder"):
        convert(tmp_path / "nothing", print)
