"""Checkpoints: what is read is what was written, or a message says why not."""

import copy
import errno
import os
import re
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from embark_jax import checkpoint
from embark_jax.checkpoint import Checkpointer, CheckpointError
from tests import runs
from tests.builders import assert_same_tables, tables_and_states
from tests.checkpoint.states import BAD_IDS, build

README = Path(checkpoint.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 3 and 4, what the state was at step 3, and the
    trainer, which went on while they were written."""
    folder = tmp_path_factory.mktemp("saved")
    setup, trainer = build(folder, "mesh.nodes=1", "mesh.gpus_per_node=2")
    steps = {}
    with Checkpointer(folder / "run", setup.identity, keep=2) as checkpoints:
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


def test_the_state_is_that_of_its_step_bit_by_bit(saved):
    folder, identity, (expected, _), trainer = saved
    before = runs.snapshot(folder)
    with Checkpointer(folder, identity, keep=None) as checkpoints:
        state, bad_ids = checkpoints.restore(trainer.state, trainer.embeddings, 3)
    trainer.restore(state)
    assert trainer.step == 3
    jax.tree.map(np.testing.assert_array_equal, trainer.state, expected)
    assert bad_ids == BAD_IDS
    assert runs.snapshot(folder) == before


@pytest.mark.slow
def test_another_plan_reads_the_same_rows(saved, tmp_path):
    folder, identity, (_, expected), _ = saved
    _, trainer = build(
        tmp_path,
        "embedding.tables.user="
        "{rows: 1000, cluster: ub, column_shards: 2, hot_rows: 30}",
        "embedding.tables.item={rows: 600, cluster: dp}",
        "embedding.tables.city={rows: 20, cluster: rb, row_shards: 3}",
    )
    with Checkpointer(folder, identity, keep=None) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings, 3)
    trainer.restore(state)
    assert_same_tables(tables_and_states(trainer), expected)


def change(identity, path, value):
    changed = copy.deepcopy(identity)
    *sections, key = path
    section = changed
    for name in sections:
        section = section[name]
    if value is None:
        del section[key]
    else:
        section[key] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("seed",), 1, "seed is 0 in the checkpoint, 1 here"),
        (
            ("tables", "user", "dim"),
            8,
            "tables.user.dim is 4 in the checkpoint, 8 here",
        ),
        (
            ("tables", "city"),
            None,
            "tables.city is {'rows': 20, 'dim': 4} in the checkpoint, nothing here",
        ),
        (
            ("tables", "hour"),
            {"rows": 24, "dim": 4},
            "tables.hour is nothing in the checkpoint, {'rows': 24, 'dim': 4} here",
        ),
        (
            ("features", "items", "pooling"),
            "sum",
            "features.items.pooling is mean in the checkpoint, sum here",
        ),
        (
            ("embedding_optimizer",),
            "adam",
            "embedding_optimizer is rowwise_adagrad in the checkpoint, adam here",
        ),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_checkpoint_of_another_model_is_refused(saved, path, value, message):
    folder, identity, _, trainer = saved
    other = change(identity, path, value)
    with (
        Checkpointer(folder, other, keep=None) as checkpoints,
        pytest.raises(CheckpointError) as caught,
    ):
        checkpoints.restore(trainer.state, trainer.embeddings)
    assert (
        str(caught.value)
        == f"{folder / '4'}: belongs to another experiment:\n  {message}"
    )


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
        (lambda f: os.truncate(f / CHUNK, 9), "Existing shard has size of 9 bytes"),
        (lambda f: flip(f / CHUNK, 500), f'{CHUNK}": Digest mismatch'),
        (lambda f: flip(f / CHUNK, -3), "Error decoding shard index"),
        (lambda f: (f / "arrays/storages.rb_4/zarr.json").unlink(), "zarr.json"),
        (lambda f: flip(f / DESCRIPTION, 30), "checkpoint.json: the checksum is wrong"),
        (lambda f: (f / DESCRIPTION).unlink(), "checkpoint.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_left_out(saved, tmp_path, damage, reason):
    folder, identity, (expected, _), trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    damage(copied / "4")
    said = []
    with Checkpointer(copied, identity, None, say=said.append) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        assert trainer.step == 3
        jax.tree.map(np.testing.assert_array_equal, trainer.state, expected)
        (left_out,) = (line for line in said if "left out" in line)
        assert left_out.startswith(f"left out {copied / '4'}: is damaged (")
        assert reason in left_out


def bits_of(folder, rng, count):
    """Random bits of the files below a folder: ``count`` in each."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for byte in rng.integers(path.stat().st_size, size=count):
            yield path, int(byte), int(rng.integers(8))


@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.slow), pytest.param(0, id="a few")]
)
def test_a_flipped_bit_is_found_wherever_it_is(saved, tmp_path, count):
    """What is restored is either the newest checkpoint, where the bit changes nothing
    that is read, or the one before it; nothing else passes."""
    folder, identity, (older, _), trainer = saved
    copied, rng = shutil.copytree(folder, tmp_path / "run"), np.random.default_rng(0)

    def restored():
        said = []
        with Checkpointer(copied, identity, None, say=said.append) as checkpoints:
            state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        return jax.tree.map(np.array, state), said

    newest, _ = restored()
    bits = list(bits_of(copied / "4", rng, max(1, count)))
    if not count:
        bits = [bits[i] for i in rng.choice(len(bits), 5, replace=False)]
    found = 0
    for path, byte, bit in bits:
        flip(path, byte, bit)
        state, said = restored()
        flip(path, byte, bit)
        left_out = [line for line in said if line.startswith("left out")]
        expected = older if left_out else newest
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        found += len(left_out)
        if "/c/" in str(path) and not PADDING.search(str(path)):
            (line,) = left_out
            assert str(path) in line
    assert found


def test_a_damaged_checkpoint_that_is_asked_for_is_refused(saved, tmp_path):
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    (copied / "4" / DESCRIPTION).unlink()
    with (
        Checkpointer(copied, identity, keep=None) as checkpoints,
        pytest.raises(CheckpointError) as caught,
    ):
        checkpoints.restore(trainer.state, trainer.embeddings, 4)
    assert str(caught.value) == (
        f"{copied / '4'}: is damaged (checkpoint.json is missing); delete it to use an "
        "older one"
    )


def test_a_run_that_goes_on_writes_a_damaged_checkpoint_anew(saved, tmp_path):
    """It comes to the same step again; until then it deletes no good one for it."""
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    (copied / "4" / CHUNK).unlink()
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        checkpoints.save(trainer.state, 4, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [3, 4]
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
        assert trainer.step == 4


def test_when_all_are_damaged_it_says_so(saved, tmp_path):
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    for step in ("3", "4"):
        (copied / step / DESCRIPTION).unlink()
    with (
        Checkpointer(copied, identity, keep=None) as checkpoints,
        pytest.raises(CheckpointError, match=r"3: is damaged .* so are all older ones"),
    ):
        checkpoints.restore(trainer.state, trainer.embeddings)


def test_a_file_with_a_steps_name_is_no_checkpoint(saved, tmp_path):
    folder = shutil.copytree(saved[0], tmp_path / "run")
    for name in ("9", "4.txt", "04"):
        (folder / name).write_text("notes")
    with Checkpointer(folder, saved[1], keep=None) as checkpoints:
        assert checkpoints.steps == [3, 4]


def test_a_missing_checkpoint_is_told(saved, tmp_path):
    folder, identity, *_ = saved
    with (
        Checkpointer(folder, identity, keep=None) as checkpoints,
        pytest.raises(CheckpointError, match=r"of step 5, only of 3, 4$"),
    ):
        checkpoints.restore(None, None, 5)
    with Checkpointer(tmp_path / "empty", identity, keep=1) as checkpoints:
        assert checkpoints.steps == []
        with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
            checkpoints.restore(None, None)


def test_what_a_killed_write_left_goes_when_a_run_goes_on(saved, tmp_path):
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    left = shutil.copytree(copied / "4", copied / "5.orbax-checkpoint-tmp")
    with Checkpointer(copied, identity, keep=None) as checkpoints:
        state, _ = checkpoints.restore(trainer.state, trainer.embeddings)
        trainer.restore(state)
    assert left.exists(), "only a run that writes may clean up"
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        checkpoints.save(trainer.state, 7, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [4, 7]
    assert not left.exists()


def save_and_wait(checkpoints, trainer, step):
    checkpoints.save(trainer.state, step, trainer.embeddings, BAD_IDS)
    assert step in checkpoints.steps


def test_a_full_disk_leaves_the_older_checkpoints(saved, tmp_path):
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    before = runs.snapshot(copied)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpointer(copied, identity, keep=2) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # no file is larger
        try:
            with pytest.raises(CheckpointError) as caught:
                save_and_wait(checkpoints, trainer, 9)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert str(caught.value) == (
            f"{copied / '9'}: the checkpoint could not be written (File too large); "
            "the newest is that of step 4"
        )
        assert runs.snapshot(copied) == before
        checkpoints.save(trainer.state, 9, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [4, 9]


def test_a_read_only_folder_leaves_the_older_checkpoints(saved, tmp_path, monkeypatch):
    folder, identity, _, trainer = saved
    copied = shutil.copytree(folder, tmp_path / "run")
    before = runs.snapshot(copied)

    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with Checkpointer(copied, identity, keep=2) as checkpoints:
        with monkeypatch.context() as read_only:  # permissions do not bind root
            read_only.setattr(os, "mkdir", refuse)
            with pytest.raises(CheckpointError) as caught:
                checkpoints.save(trainer.state, 9, trainer.embeddings, BAD_IDS)
        assert str(caught.value) == (
            f"{copied / '9'}: the checkpoint could not be written (Read-only file "
            "system); the newest is that of step 4"
        )
        assert runs.snapshot(copied) == before
        checkpoints.save(trainer.state, 9, trainer.embeddings, BAD_IDS)
        assert checkpoints.steps == [4, 9]


def test_of_two_writers_one_is_refused(saved, tmp_path):
    _, identity, _, trainer = saved
    folder = tmp_path / "run"
    with Checkpointer(folder, identity, keep=2) as checkpoints:
        with pytest.raises(CheckpointError, match="another run writes its checkpoints"):
            Checkpointer(folder, identity, keep=2)
        checkpoints.save(trainer.state, 1, trainer.embeddings, BAD_IDS)
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
        checkpoints.save(other.state, 1, other.embeddings, BAD_IDS)
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
