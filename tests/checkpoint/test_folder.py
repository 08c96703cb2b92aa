"""A name in the folder of checkpoints stands for all of one, or for none."""

import shutil

import pytest

from embark_jax.checkpoint import CheckpointError
from embark_jax.checkpoint.folder import CheckpointFolder


def test_what_is_given_up_takes_its_name_along(tmp_path, monkeypatch):
    """Others may still write when a checkpoint is deleted: of what they write, nothing
    may come into the next attempt at the same step."""
    folder = CheckpointFolder(tmp_path)
    left = folder.begin(3)
    folder.tell_failed(3, 1, "File too large")
    with pytest.raises(CheckpointError, match="File too large"):
        folder.commit(3, {"device-0.bin": 8})
    with monkeypatch.context() as interrupted:  # as by files that come meanwhile
        interrupted.setattr(shutil, "rmtree", lambda *_, **__: None)
        folder.discard(left)
        assert not left.exists()
        again = folder.begin(3)
        assert not list(again.iterdir())
        folder.discard(again)
    folder.prepare()
    folder.release()
    assert not list(tmp_path.iterdir())
