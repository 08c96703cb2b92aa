"""Prepared data as a dataset: every sample once an epoch, in an order of its own."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embark_jax.data import DataError, PreparedData, prepared
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import Manifest, PreparedFeature
from embark_jax.data.verify import verify
from tests.runs import embark

SAMPLES = {"train": (23, 41, 8), "validation": (5,), "test": (9, 17)}
BLOCK_ROWS, WINDOW_BLOCKS = 4, 3


def write(folder: Path, samples=SAMPLES) -> Path:
    """A folder whose samples hold their own number: in ids, bags and dense features."""
    features = {
        "one": PreparedFeature(table="t", hotness=1, pooling="sum"),
        "bag": PreparedFeature(table="t", hotness=3, pooling="mean"),
    }
    manifest = Manifest.of(
        made_from={}, dense=("x", "y"), features=features, table_rows={"t": 1000}
    ).model_copy(update={"block_rows": BLOCK_ROWS})
    parts = {}
    for split, sizes in samples.items():
        numbers = itertools.accumulate(sizes, initial=0)
        parts[split] = tuple(
            manifests.write_part(
                folder,
                f"{split}/{place}.arrow",
                table_of(np.arange(first, first + size), manifest.schema()),
                BLOCK_ROWS,
            )
            for place, (first, size) in enumerate(zip(numbers, sizes, strict=False))
        )
    manifest.model_copy(update={"parts": parts}).save(folder)
    return folder


def table_of(numbers: np.ndarray, schema: pa.Schema) -> pa.Table:
    bags = np.stack([numbers, numbers + 1, np.full_like(numbers, -1)], axis=1)
    bags = pa.FixedSizeListArray.from_arrays(pa.array(bags.ravel().astype(np.int32)), 3)
    columns = [numbers % 2, numbers, -numbers, numbers, bags]
    return pa.table(
        [
            column if isinstance(column, pa.Array) else pa.array(column).cast(f.type)
            for column, f in zip(columns, schema, strict=True)
        ],
        schema,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(prepared, "WINDOW_BLOCKS", WINDOW_BLOCKS)


def numbers(batch) -> list[int]:
    """The samples of a batch; checks that all their columns belong together."""
    one = batch.ids["one"][:, 0]
    np.testing.assert_array_equal(
        batch.ids["bag"], np.stack([one, one + 1, np.full_like(one, -1)], axis=1)
    )
    np.testing.assert_array_equal(batch.dense, np.stack([one, -one], axis=1))
    np.testing.assert_array_equal(batch.labels, one % 2)
    assert batch.ids["one"].dtype == np.int32
    assert batch.dense.dtype == batch.labels.dtype == np.float32
    return one.tolist()


def test_every_sample_once_an_epoch_and_each_epoch_in_its_own_order(folder):
    data = PreparedData(folder)
    assert data.train_samples == 72
    epochs = [numbers(data.train_batch(epoch, 72)) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(72))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert numbers(PreparedData(folder, seed=1).train_batch(0, 72)) != epochs[0]


@given(st.integers(1, 100), st.data())
def test_any_batch_is_found_without_those_before(folder, batch_size, draw):
    data = PreparedData(folder)
    whole = list(itertools.chain(*(numbers(data.train_batch(e, 72)) for e in range(4))))
    steps = range(len(whole) // batch_size)
    fresh = PreparedData(folder)
    for step in draw.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=4)):
        found = numbers(fresh.train_batch(step, batch_size))
        assert found == whole[step * batch_size : (step + 1) * batch_size]


def test_processes_read_parts_of_a_batch(folder):
    data = PreparedData(folder)
    for step in range(6):
        parts = [numbers(data.train_batch(step * 4 + p, 5)) for p in range(4)]
        assert list(itertools.chain(*parts)) == numbers(data.train_batch(step, 20))


def test_neighbours_are_torn_apart(folder):
    order = np.array(numbers(PreparedData(folder).train_batch(0, 72)))
    together = np.mean(np.diff(order) == 1)
    assert together < 0.15
    # And blocks of one window come from all over the epoch.
    first = order[: WINDOW_BLOCKS * BLOCK_ROWS]
    assert len(set(first // BLOCK_ROWS)) >= WINDOW_BLOCKS


@pytest.mark.parametrize("batch_size", [1, 4, 7, 26, 100])
def test_the_other_splits_are_in_order(folder, batch_size):
    data = PreparedData(folder)
    found = list(map(numbers, data.test_batches(batch_size)))
    assert list(itertools.chain(*found)) == list(range(26))
    assert {len(batch) for batch in found[:-1]} <= {batch_size}
    validation = map(numbers, data.validation_batches(3) or ())
    assert list(itertools.chain(*validation)) == [*range(5)]


def test_data_may_have_no_validation_set(tmp_path):
    data = PreparedData(write(tmp_path, {"train": (8,), "validation": (), "test": ()}))
    assert data.validation_batches(4) is None


def test_samples_say_where_they_lie(folder):
    batch = PreparedData(folder).train_batch(1, 30)
    for place, number in enumerate(numbers(batch)):
        part, row = (0, number) if number < 23 else (1, number - 23)
        if number >= 64:
            part, row = 2, number - 64
        assert batch.locate(place) == f"{folder}/train/{part}.arrow, row {row}"


def edit(folder: Path, **changes) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "manifest.json").unlink(),
            r"manifest\.json: no such file; `embark data prepare` makes such",
        ),
        (
            lambda f: (f / "manifest.json").write_text("{"),
            r"manifest\.json: .*prepare the data again",
        ),
        (lambda f: edit(f, version=3), r"manifest\.json: version: "),
        (lambda f: edit(f, block_rows=0), r"manifest\.json: block_rows: "),
        (lambda f: (f / "train" / "1.arrow").unlink(), r"train/1\.arrow: is missing"),
        (
            lambda f: (f / "train" / "1.arrow").write_bytes(b"ARROW1"),
            r"train/1\.arrow: has 6 bytes, must have [\d,]+; prepare the data again",
        ),
        (lambda f: edit(f, dense=["x", "z"]), r"arrow: its columns are not those of"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    damage(write(tmp_path))
    with pytest.raises(DataError, match=message):
        PreparedData(tmp_path).train_batch(0, 8)


@settings(max_examples=30)
@given(st.data())
def test_a_flipped_byte_is_never_trained_on(folder, draw):
    """Wherever it is, it is found or changes nothing that is read."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "copy"))
        file = copy / "train" / "1.arrow"
        damaged = bytearray(file.read_bytes())
        place = draw.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= draw.draw(st.integers(1, 255))
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"train/1\.arrow: is not as it was"):
            verify(copy)
        found = numbers_or_error(copy)
        assert file.name in found or found == numbers_or_error(folder)


def numbers_or_error(folder: Path) -> str:
    try:
        return str(numbers(PreparedData(folder).train_batch(0, 72)))
    except DataError as error:
        return str(error)


def test_damaged_values_are_named_when_they_are_read(tmp_path):
    file = write(tmp_path) / "train" / "1.arrow"
    content = file.read_bytes()
    values = np.arange(23 + 8, 23 + 12, dtype=np.float32).tobytes()  # its third block
    assert content.count(values) == 1
    file.write_bytes(content.replace(values, bytes(16)))
    with pytest.raises(DataError) as found:
        PreparedData(tmp_path).train_batch(0, 72)
    assert str(found.value) == (
        f"{file}, rows 8 to 11: are not as they were written, the file is damaged; "
        f"`embark data verify {tmp_path}` looks for more such; prepare the data again, "
        "in another folder"
    )
    assert len(list(PreparedData(tmp_path).test_batches(9))) == 3


def test_verify_reads_everything(tmp_path):
    write(tmp_path)
    assert verify(tmp_path).files == 6
    damaged = ["test/0.arrow", "train/2.arrow"]
    for name in damaged:
        with (tmp_path / name).open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"x")
    (tmp_path / "validation" / "0.arrow").unlink()
    outcome = embark("data", "verify", tmp_path)
    assert outcome.code == 1
    first, *others = outcome.err.splitlines()
    assert first == (
        f"error: {tmp_path}: is damaged; prepare the data again, in another folder"
    )
    assert len(others) == 3
    for name in (*damaged, "validation/0.arrow"):
        assert f"  {tmp_path}/{name}: is " in outcome.err


def test_an_older_folder_is_refused_with_the_command_that_mends_it(tmp_path):
    write(tmp_path)
    path = tmp_path / "manifest.json"
    expected = path.read_bytes()
    older = json.loads(expected)
    older["version"] = 1
    for key in ("missing_dense", "vocabularies"):
        del older[key]
    for part in itertools.chain(*older["parts"].values()):
        del part["crc32"]
    path.write_text(json.dumps(older))
    command = f"`embark data verify {tmp_path}` checks the files and adds them"
    with pytest.raises(DataError, match=command):
        PreparedData(tmp_path)
    outcome = embark("data", "verify", tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "6 files, " in outcome.out
    assert "all as they were written\n" in outcome.out
    assert path.read_bytes() == expected
    PreparedData(tmp_path).train_batch(0, 72)


def test_a_file_of_zeros_is_named(tmp_path):
    file = write(tmp_path) / "train" / "0.arrow"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataError, match=r"train/0\.arrow: .*prepare the data again"):
        PreparedData(tmp_path).train_batch(0, 72)
