"""Prepared data as a dataset: every sample once an epoch, in an order of its own."""

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embark_jax._base.files import write_arrow
from embark_jax.data import Batch, DataError, PreparedData, prepared
from embark_jax.data import manifest as manifests
from embark_jax.data.manifest import Manifest, PreparedFeature, Table

SAMPLES = {"train": (23, 41, 8), "validation": (5,), "test": (9, 17)}
BLOCK_ROWS, GROUP_BLOCKS = 4, 3


def write(folder: Path, samples=SAMPLES) -> Path:
    """A folder whose samples hold their own number: in ids, bags and dense features."""
    features = {
        "one": PreparedFeature(table="t", hotness=1, pooling="sum"),
        "bag": PreparedFeature(table="t", hotness=3, pooling="mean"),
    }
    tables = {"t": Table(rows=1000, kind="numbers")}
    manifest = Manifest.of(
        made_from={}, dense=("x", "y"), features=features, tables=tables
    )
    files = {}
    for split, sizes in samples.items():
        numbers = itertools.accumulate(sizes, initial=0)
        files[split] = tuple(
            manifests.write_samples(
                folder,
                f"{split}/{place}.arrow",
                batch_of(np.arange(first, first + size), manifest),
                manifest,
            )
            for place, (first, size) in enumerate(zip(numbers, sizes, strict=False))
        )
    manifest.model_copy(update={"files": files}).save(folder)
    return folder


def batch_of(numbers: np.ndarray, manifest: Manifest) -> Batch:
    layout = manifest.layout()
    batch = Batch.of(layout, layout.padding(len(numbers)))
    batch.labels[:] = numbers % 2
    batch.dense[:] = np.stack([numbers, -numbers], axis=1)
    ids: Any = batch.ids
    ids["one"][:] = numbers[:, None]
    ids["bag"][:, :2] = np.stack([numbers, numbers + 1], axis=1)
    return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(autouse=True, scope="module")
def small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "GROUP_BLOCKS", GROUP_BLOCKS)
        patch.setattr(manifests, "BLOCK_BYTES", BLOCK_ROWS * 28)
        yield


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


def order(data: PreparedData, epoch: int) -> list[int]:
    """An epoch's samples in the order in which batches of any size take them."""
    steps = range(epoch * 72, (epoch + 1) * 72)
    return [number for step in steps for number in numbers(data.train_batch(step, 1))]


def test_every_sample_once_an_epoch_and_each_epoch_in_its_own_order(folder):
    data = PreparedData(folder)
    assert data.train_samples == 72
    epochs = [order(data, epoch) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(72))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert order(PreparedData(folder, seed=1), 0) != epochs[0]


@pytest.fixture(scope="module")
def read(folder) -> tuple[PreparedData, list[int]]:
    """Data that were read for four epochs, and the samples in their order."""
    data = PreparedData(folder)
    return data, list(itertools.chain(*(order(data, epoch) for epoch in range(4))))


@given(st.integers(1, 100), st.data())
def test_any_batch_is_found_without_those_before(folder, read, batch_size, draw):
    data, whole = read
    steps = range(len(whole) // batch_size)
    fresh = PreparedData(folder)
    for step in draw.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=4)):
        found = numbers(fresh.train_batch(step, batch_size))
        expected = whole[step * batch_size : (step + 1) * batch_size]
        assert sorted(found) == sorted(expected)
        assert numbers(data.train_batch(step, batch_size)) == found


def test_neighbours_are_torn_apart(folder):
    data = PreparedData(folder)
    taken, later = (np.array(order(data, epoch)) for epoch in (0, 1))
    together = np.mean(np.diff(taken) == 1)
    assert together < 0.15
    # And blocks of one window come from all over the epoch, others in the next one.
    first, of_later = ({*each[: GROUP_BLOCKS * BLOCK_ROWS]} for each in (taken, later))
    assert len({number // BLOCK_ROWS for number in first}) >= GROUP_BLOCKS
    assert first != of_later


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_the_other_splits_are_in_order(folder, batch_size):
    data = PreparedData(folder)
    found = list(map(numbers, data.test_batches(batch_size)))
    assert list(itertools.chain(*found)) == list(range(26))
    assert {len(batch) for batch in found[:-1]} <= {batch_size}
    validation = map(numbers, data.validation_batches(3) or ())
    assert list(itertools.chain(*validation)) == [*range(5)]


def test_samples_say_where_they_lie(folder):
    batch = PreparedData(folder).train_batch(1, 30)
    for place, number in enumerate(numbers(batch)):
        part, row = (0, number) if number < 23 else (1, number - 23)
        if number >= 64:
            part, row = 2, number - 64
        assert batch.locate(place) == f"{folder}/train/{part}.arrow, row {row}"


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
        found = numbers_or_error(copy)
        assert file.name in found or found == numbers_or_error(folder)


def numbers_or_error(folder: Path) -> str:
    try:
        return str(numbers(PreparedData(folder).train_batch(0, 72)))
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("number", [-4, 1001])
def test_bad_samples_are_not_written(tmp_path, number):
    manifest = PreparedData(write(tmp_path)).manifest
    batch = batch_of(np.array([5, number]), manifest)
    message = f"'one', column 0: value is {number}, must be from 0 to 999"
    with pytest.raises(
        DataError, match=rf"new\.arrow, row 1: ids of feature {message}"
    ):
        manifests.write_samples(tmp_path, "new.arrow", batch, manifest)
    assert not (tmp_path / "new.arrow").exists()


def test_other_tools_read_the_files(folder):
    with pa.memory_map(str(folder / "train" / "1.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    query = "SELECT ids[1], numbers[2] FROM table_ ORDER BY ids[1]"
    found = duckdb.connect().register("table_", table).execute(query).fetchall()
    assert found == [(number, float(number)) for number in range(23, 64)]


def test_ids_of_64_bits_have_a_matrix_of_their_own(tmp_path):
    kinds = [("a", 2, 100), ("b", 1, 2**40), ("c", 3, 100), ("d", 1, 2**50)]
    features = {
        name: PreparedFeature(table=name, hotness=hotness, pooling="mean")
        for name, hotness, _ in kinds
    }
    manifest = Manifest.of(
        made_from={},
        dense=("x",),
        labels=("one", "two"),
        sample_weights=True,
        features=features,
        tables={n: Table(rows=rows, kind="numbers") for n, _, rows in kinds},
    )
    rng = np.random.default_rng(0)
    layout = manifest.layout()
    batch: Any = Batch.of(layout, layout.padding(50))
    batch.labels[:], batch.dense[:] = rng.random((50, 2)), rng.random((50, 1))
    batch.sample_weights[:] = rng.random(50)
    for name, hotness, rows in kinds:
        batch.ids[name][:] = rng.integers(rows, size=(50, hotness))
    written = manifests.write_samples(tmp_path, "train/0.arrow", batch, manifest)
    files = {"train": (written,), "validation": (), "test": ()}
    manifest.model_copy(update={"files": files}).save(tmp_path)
    data = PreparedData(tmp_path, seed=None)
    for read in (*data.in_file_order("train", 50), data.train_batch(0, 50)):
        assert read.matrices()[0] == layout
        for name, matrix in batch.matrices()[1].items():
            np.testing.assert_array_equal(read.matrices()[1][name], matrix)


def test_neighbours_are_slices_of_the_mapped_file(folder):
    data = PreparedData(folder, seed=None)
    for batch in (data.train_batch(3, 10), *data.test_batches(9)):
        assert all(matrix.base is not None for matrix in batch.matrices()[1].values())
        assert not batch.dense.flags.writeable
    across_files = data.train_batch(1, 20)
    assert across_files.dense.flags.writeable
    assert numbers(across_files) == [*range(20, 40)]


def test_ids_are_not_read_from_floats(tmp_path):
    """A file of the right size, whoever wrote it, with a checksum of its own."""
    folder = write(tmp_path)
    path, manifest = folder / "train" / "1.arrow", manifests.read(folder)
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    ids = table["ids"].combine_chunks()
    floats = pa.array(ids.flatten().to_numpy().view(np.float32))
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns["ids"] = pa.FixedSizeListArray.from_arrays(floats, ids.type.list_size)
    write_arrow(path, pa.table(columns))
    file = manifests.SampleFile.of(folder, "train/1.arrow", rows=41)
    with pytest.raises(DataError, match=r"column ids has .*float.*, must have .*int32"):
        file.mapped(folder, manifest.matrix_types)
