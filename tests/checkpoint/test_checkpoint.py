"""Checkpoints: what is read is what was written, or a message says why not."""

import contextlib
import errno
import functools
import json
import os
import re
import resource
import shutil
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from embark_jax import checkpoint
from embark_jax.checkpoint import Checkpointer, CheckpointError
from embark_jax.checkpoint.arrays import SavedArray
from embark_jax.checkpoint.writing import start_writing
from embark_jax.data.hashed_file import checksum_of
from embark_jax.train.state import StateLostError
from tests import runs
from tests.builders import tables_and_states
from tests.checkpoint.states import BAD_IDS, build

README = Path(checkpoint.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 3 and 4, what the state was at step 3, and the
    trainer, which went on while they were written."""
    folder = tmp_path_factory.mktemp("saved")
    setup, trainer = build(folder, "mesh.nodes=1", "mesh.gpus_per_node=2")
    steps = {}
    by_another_way = folder / ".." / folder.name / "run"
    with Checkpointer(by_another_way, setup.identity, keep=2) as checkpoints:
        for step in (1, 3, 4):
            trainer.fit(setup.dataset, step)
            steps[step] = (
                jax.tree.map(np.array, trainer.state),
                tables_and_states(trainer),
            )
            checkpoints.save(trainer.state, step, trainer.embeddings, BAD_IDS)
        trainer.fit(setup.dataset, 7)
        assert checkpoints.steps == [3, 4]
    return folder / "run", setup.identity, steps[3], trainer


@pytest.fixture
def copied(saved, tmp_path):
    """A copy of the folder, that a test may change."""
    return shutil.copytree(saved[0], tmp_path / "run")


def restored(folder, identity, trainer, step=None):
    """Restores a checkpoint into the trainer; returns its state in NumPy, the counts of
    bad ids, and what was said."""
    said = []
    with Checkpointer(folder, identity, None, say=said.append) as checkpoints:
        state, bad_ids = checkpoints.restore(trainer.state, trainer.embeddings, step)
    trainer.restore(state)
    return jax.tree.map(np.array, trainer.state), bad_ids, said


def save(checkpoints, trainer, step):
    checkpoints.save(trainer.state, step, trainer.embeddings, BAD_IDS)


assert_equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)


def test_the_state_is_that_of_its_step_bit_by_bit(saved):
    folder, identity, (expected, _), trainer = saved
    before = runs.snapshot(folder)
    state, bad_ids, _ = restored(folder, identity, trainer, 3)
    assert trainer.step == 3
    assert_equal(state, expected)
    assert bad_ids == BAD_IDS
    assert runs.snapshot(folder) == before


CHUNK = "arrays/storages.ub_4/c/1/0/0"
"""The rows that device 1 has of a storage."""
PADDING = re.compile(r"\.rb_4[^/]*/c/1/")
"""Files of device 1, which has none of that storage's rows: nobody reads them."""
DESCRIPTION = "embark/checkpoint.json"


def flip(path, byte, bit=0):
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / CHUNK).unlink(), f'{CHUNK}" is missing'),
        (lambda f: os.truncate(f / CHUNK, 99), f'{CHUNK}": Error decoding shard index'),
        (lambda f: flip(f / CHUNK, 500), f'{CHUNK}": Digest mismatch'),
        (lambda f: (f / "arrays/storages.rb_4/zarr.json").unlink(), "zarr.json"),
        (lambda f: flip(f / DESCRIPTION, 30), "checkpoint.json is not as it was"),
        (lambda f: (f / DESCRIPTION).unlink(), "checkpoint.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_left_out(saved, copied, damage, reason):
    _, identity, (expected, _), trainer = saved
    damage(copied / "4")
    state, _, said = restored(copied, identity, trainer)
    assert_equal(state, expected)
    (left_out,) = (line for line in said if "left out" in line)
    assert left_out.startswith(f"left out {copied / '4'}: is damaged (")
    assert reason in left_out


DENSE = "arrays/params.bottom.layers.0.b/c/0"


@pytest.mark.parametrize("file", [CHUNK, DENSE, "arrays/digests.0.json"])
def test_a_chunk_of_another_checkpoint_is_found(saved, copied, file):
    _, identity, (expected, _), trainer = saved
    shutil.copy(copied / "3" / file, copied / "4" / file)
    state, _, said = restored(copied, identity, trainer)
    assert_equal(state, expected)
    (left_out,) = (line for line in said if "left out" in line)
    name = file.split("/c/")[0]
    assert re.search(
        rf"{name}(: chunk [01/]+ is of another| is not as it was)", left_out
    )


def test_chunks_of_one_array_that_are_exchanged_are_found(saved, copied):
    """Of another device, or of another place in a file: all with their checksums."""
    _, identity, (expected, _), trainer = saved
    one, other = (copied / "4/arrays/storages.ub_4" / f"c/{i}/0/0" for i in range(2))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    state, _, said = restored(copied, identity, trainer)
    assert_equal(state, expected)
    (left_out,) = (line for line in said if "left out" in line)
    assert re.search(r"storages.ub_4: chunk [01]/0 is of another place", left_out)


def test_a_failed_load_keeps_the_state_or_says_that_it_is_gone(saved, copied, tmp_path):
    _, identity, *_ = saved
    setup, trainer = build(tmp_path, "mesh.nodes=1", "mesh.gpus_per_node=1")
    before = jax.tree.map(np.array, trainer.state)
    with (
        Checkpointer(copied, {**identity, "seed": 99}, None) as checkpoints,
        pytest.raises(CheckpointError, match="belongs to another experiment"),
    ):
        trainer.load(checkpoints)
    shutil.copy(copied / "3" / DENSE, copied / "4" / DENSE)
    with Checkpointer(copied, identity, None) as checkpoints:
        with pytest.raises(CheckpointError, match="is damaged"):
            trainer.load(checkpoints, 4)
        assert_equal(jax.tree.map(np.array, trainer.state), before)
        shutil.copy(copied / "4" / CHUNK, copied / "3" / CHUNK)
        with pytest.raises(CheckpointError, match="state are overwritten: make a new"):
            trainer.load(checkpoints, 3)
        calls = (
            lambda: trainer.fit(setup.dataset, 3),
            lambda: trainer.evaluate(setup.dataset.test_batches(64)),
            lambda: trainer.table("item"),
            lambda: trainer.model,
            lambda: trainer.load(checkpoints, 4),
        )
        for call in calls:
            with pytest.raises(
                StateLostError, match=r"the state is gone: .*3: is damag"
            ):
                call()


def test_values_that_are_not_finite_are_not_written(saved, tmp_path):
    _, identity, _, trainer = saved
    state, array = trainer.state, trainer.state.storages["ub_4"]
    broken = state._replace(
        storages=state.storages | {"ub_4": array.at[3, 1].set(np.nan)}
    )
    with Checkpointer(tmp_path, identity, keep=2) as checkpoints:
        save(checkpoints, trainer, 1)
        assert checkpoints.steps == [1]
        checkpoints.save(broken, 2, trainer.embeddings, BAD_IDS)
        with pytest.raises(
            CheckpointError, match="ub_4 has values that are not fin"
        ) as e:
            checkpoints.steps  # noqa: B018
        assert not e.value.may_pass
        assert str(e.value).endswith("the newest is that of step 1")


def bits_of(folder, rng, count):
    """Random bits of the files below a folder: ``count`` in each."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for byte in rng.integers(path.stat().st_size, size=count):
            yield path, int(byte), int(rng.integers(8))


@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.slow), pytest.param(0, id="a few")]
)
def test_a_flipped_bit_is_found_wherever_it_is(saved, copied, count):
    """What is restored is either the newest checkpoint, where the bit changes nothing
    that is read, or the one before it; nothing else passes."""
    _, identity, (older, _), trainer = saved
    rng = np.random.default_rng(0)
    newest, *_ = restored(copied, identity, trainer)
    bits = list(bits_of(copied / "4", rng, max(1, count)))
    if not count:
        bits = [bits[i] for i in rng.choice(len(bits), 5, replace=False)]
    found = 0
    for path, byte, bit in bits:
        flip(path, byte, bit)
        state, _, said = restored(copied, identity, trainer)
        flip(path, byte, bit)
        left_out = [line for line in said if line.startswith("left out")]
        assert_equal(state, older if left_out else newest)
        found += len(left_out)
        if "/c/" in str(path) and not PADDING.search(str(path)):
            (line,) = left_out
            assert str(path) in line
    assert found


def test_a_checkpoint_of_an_earlier_version_is_refused(saved, copied):
    """None before it is taken instead."""
    _, identity, _, trainer = saved
    path = copied / "4" / DESCRIPTION
    fields = json.loads(path.read_text())
    del fields["checksum"]
    fields["version"] = 1
    path.write_text(json.dumps({"checksum": checksum_of(fields), **fields}))
    sentence = "checkpoint.json is of another version of embark_jax: train anew, or use"
    with pytest.raises(CheckpointError, match=rf"run/4: {sentence} that version$"):
        restored(copied, identity, trainer)


def test_what_cannot_be_read_is_told(saved, copied, tmp_path):
    _, identity, _, trainer = saved
    with pytest.raises(CheckpointError, match=r"of step 5, only of 3, 4$"):
        restored(copied, identity, trainer, 5)
    (copied / "4" / DESCRIPTION).unlink()
    with pytest.raises(CheckpointError) as caught:
        restored(copied, identity, trainer, 4)
    assert str(caught.value) == (
        f"{copied / '4'}: is damaged (checkpoint.json is missing); delete it to use an "
        "older one"
    )
    (copied / "3" / DESCRIPTION).unlink()
    with pytest.raises(CheckpointError, match=r"3: is damaged .* as all older ones"):
        restored(copied, identity, trainer)
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        restored(tmp_path / "empty", identity, trainer)


def test_a_run_that_goes_on_writes_a_damaged_checkpoint_anew(saved, copied):
    """It comes to the same step again; until then it deletes no good one for it."""
    _, identity, _, trainer = saved
    (copied / "4" / CHUNK).unlink()
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        save(checkpoints, trainer, 4)
        assert checkpoints.steps == [3, 4]
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        assert trainer.step == 4


def test_what_is_no_checkpoint(saved, copied):
    """Files of such names; and what a killed write left, which goes when a run that
    writes goes on."""
    _, identity, _, trainer = saved
    for name in ("9", "4.txt", "04"):
        (copied / name).write_text("notes")
    left = shutil.copytree(copied / "4", copied / "5.orbax-checkpoint-tmp")
    with Checkpointer(copied, identity, keep=None) as checkpoints:
        assert checkpoints.steps == [3, 4]
    assert left.exists()
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        save(checkpoints, trainer, 7)
        assert checkpoints.steps == [4, 7]
    assert not left.exists()


def save_and_wait(checkpoints, trainer, step):
    save(checkpoints, trainer, step)
    assert step in checkpoints.steps


def full(patch):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    patch.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))  # no file is larger


def read_only(patch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    patch.enter_context(mock.patch.object(os, "mkdir", refuse))  # root may all


@pytest.mark.parametrize(
    ("disk", "reason"),
    [(full, "File too large"), (read_only, "Read-only file system")],
)
def test_a_disk_that_fails_leaves_the_older_checkpoints(saved, copied, disk, reason):
    _, identity, _, trainer = saved
    before = runs.snapshot(copied)
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        with contextlib.ExitStack() as patch:
            disk(patch)
            with pytest.raises(CheckpointError) as caught:
                save_and_wait(checkpoints, trainer, 9)
        assert str(caught.value) == (
            f"{copied / '9'}: the checkpoint could not be written ({reason}); "
            "the newest is that of step 4"
        )
        assert runs.snapshot(copied) == before
        save(checkpoints, trainer, 9)
        assert checkpoints.steps == [4, 9]


def test_of_two_writers_one_is_refused(saved, tmp_path):
    _, identity, _, trainer = saved
    folder = tmp_path / "run"
    with Checkpointer(folder, identity, keep=2) as checkpoints:
        with pytest.raises(CheckpointError, match="another run writes its checkpoints"):
            Checkpointer(folder, identity, keep=2)
        save(checkpoints, trainer, 1)
        with Checkpointer(folder, identity, keep=None) as reader:
            assert set(reader.steps) <= {1}
    with Checkpointer(folder, identity, keep=2) as checkpoints:
        assert checkpoints.steps == [1]


def test_saving_copies_nothing_that_is_donated(tmp_path):
    # A view that is left of a block would make the next step copy the whole storage.
    setup, other = build(tmp_path, "mesh.nodes=1", "mesh.gpus_per_node=2")
    other.fit(setup.dataset, 1)

    def places():
        return [
            shard.data.unsafe_buffer_pointer()
            for storage in other.state.storages.values()
            for shard in storage.addressable_shards
        ]

    before = places()
    with Checkpointer(tmp_path / "run", setup.identity, keep=1) as checkpoints:
        save(checkpoints, other, 1)
        other.fit(setup.dataset, 2)
        assert places() == before
        state, _ = checkpoints.restore(other.state, other.embeddings)
    other.restore(state)
    assert places() == before, "it is overwritten in place"
    other.fit(setup.dataset, 2)
    assert places() == before


@pytest.fixture
def readme():
    """The examples of the format's description, which read a checkpoint each."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_plain_orbax_and_tensorstore_read_the_arrays(saved, readme, monkeypatch):
    folder, _, (expected, _), _ = saved
    monkeypatch.chdir(folder / "3")
    orbax, tensorstore, _ = ({} for _ in readme)
    exec(readme[0], orbax)
    exec(readme[1], tensorstore)
    storage = expected.storages["rb_4"]
    np.testing.assert_array_equal(
        orbax["arrays"]["storages.rb_4"].reshape(storage.shape), storage
    )
    np.testing.assert_array_equal(
        orbax["arrays"]["params.bottom.layers.0.b"],
        expected.params["bottom"]["layers"][0]["b"].get_value(),
    )
    np.testing.assert_array_equal(
        tensorstore["rows"], storage.reshape(2, -1, 4)[1, 100:200]
    )


def test_json_and_tensorstore_read_a_table(saved, readme):
    folder, _, (_, expected), _ = saved
    example = {}
    exec(readme[2], example)
    for name in ("user", "item", "city"):
        np.testing.assert_array_equal(
            example["table"](folder / "3", name), expected[name, "weights"]
        )


def test_after_a_write_that_failed_no_other_is_tried(monkeypatch, tmp_path):
    """A bucket that is gone is asked for a minute, once and not for each array."""
    store = mock.MagicMock()
    write = store.__getitem__.return_value.write
    write.return_value.result.side_effect = OSError("the bucket is gone")
    opened: Future = Future()
    opened.set_result(store)
    monkeypatch.setattr(SavedArray, "create", lambda *_: opened)
    arrays = {f"a{i}": jax.numpy.zeros(3) for i in range(50)}
    for started in start_writing(tmp_path, arrays, None).writes:
        with pytest.raises(OSError, match="the bucket is gone"):
            started.result()
    assert write.call_count <= 2, "that many are under way at once"
