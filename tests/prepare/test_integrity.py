"""Vocabularies that are read are those that were written."""

from pathlib import Path

import pytest

from embark_jax.data import DataError, PreparedData
from embark_jax.data import encoding as encoding_files
from embark_jax.data import manifest as manifests
from embark_jax.data.table_values import TableValues
from tests.prepare.raw_files import prepared, write_rows


@pytest.fixture
def folder(tmp_path) -> Path:
    """Data of two tables, whose vocabularies have equally many bytes."""
    rows = [(i % 2, f"a{i % 5}", f"b{i % 5}") for i in range(40)]
    write_rows(tmp_path / "rows.csv", ["label", "a", "b"], rows)
    return prepared(tmp_path / "rows.csv", tmp_path / "out").folder


def exchange(vocabulary: Path) -> None:
    one, other = vocabulary / "a.arrow", vocabulary / "b.arrow"
    assert one.stat().st_size == other.stat().st_size
    scratch = one.rename(vocabulary / "c.arrow")
    other.rename(one)
    scratch.rename(other)


def flip(vocabulary: Path) -> None:
    """Changes a byte of a value: a1 becomes e1."""
    path = vocabulary / "a.arrow"
    content = path.read_bytes().replace(b"a0a1a2", b"a0e1a2")
    assert content != path.read_bytes()
    path.unlink()  # it may be a hard link
    path.write_bytes(content)


def remove(vocabulary: Path) -> None:
    (vocabulary / "a.arrow").unlink()


def encoded(folder: Path, run: Path) -> None:
    data = manifests.read(folder)
    encoding_files.save_encoding(folder, data, run / encoding_files.FOLDER)


def extended(folder: Path, out: Path) -> None:
    prepared(folder.parent / "rows.csv", out, extend=folder)


def known(folder: Path, out: Path) -> None:
    TableValues(folder, manifests.read(folder)).keys("a")


@pytest.mark.parametrize("damage", [exchange, flip, remove])
@pytest.mark.parametrize("read", [encoded, extended, known])
def test_vocabularies_are_those_that_were_written(folder, damage, read, tmp_path):
    """Whoever reads one compares its hash; training reads none."""
    read(folder, tmp_path / "good")
    damage(folder / "vocabulary")
    with pytest.raises(DataError, match=r"a\.arrow: is .*prepare the data again"):
        read(folder, tmp_path / "bad")
    if damage is not remove:
        assert PreparedData(folder).table_rows == {"a": 7, "b": 7}
