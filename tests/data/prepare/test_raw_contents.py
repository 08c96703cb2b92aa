"""Prepared data are of the raw files as they are now, or the command says no."""

import os
from pathlib import Path

import pytest

from embark_jax.data import DataError
from embark_jax.data.prepare import movielens_files, raw_contents
from embark_jax.data.prepare.raw_contents import Stamp
from tests.data.prepare.raw_files import prepared
from tests.runs import Outcome, embark


@pytest.fixture
def raw(tmp_path) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("label,shop\n" + "1,a\n0,b\n" * 20)
    return path


def prepare(raw: Path, *options: str) -> Outcome:
    out = raw.parent / "out"
    return embark("data", "prepare", "csv", "--raw", raw, "--out", out, *options)


def test_nothing_is_read_twice(raw, monkeypatch):
    assert "already prepared" not in prepare(raw).out
    monkeypatch.setattr(raw_contents, "xxh3_of", lambda path: pytest.fail("was read"))
    again = prepare(raw)
    assert (again.code, again.err) == (0, "")
    assert "already prepared, nothing was read" in again.out


@pytest.mark.parametrize("keep_time", [False, True])
def test_other_content_of_the_same_size_is_noticed(raw, keep_time):
    prepare(raw)
    before = raw.stat()
    raw.write_text(raw.read_text().replace("0,b", "1,c"))
    if keep_time:
        os.utime(raw, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = prepare(raw)
    assert refused.code == 1
    assert f"{raw}: has other content of the same size when" in refused.err
    assert "take another --out, or delete" in refused.err


def test_other_sizes_and_names_are_noticed(raw):
    prepare(raw)
    text = raw.read_text()
    raw.write_text(text + "1,a\n")
    assert "clicks.csv: has 175 bytes, had 171 when" in prepare(raw).err
    raw.write_text(text)
    assert prepare(raw).code == 0
    raw.rename(other := raw.with_name("others.csv"))
    assert "made from other raw files (clicks.csv), not from" in prepare(other).err


def test_a_touched_copy_is_the_same_file(raw):
    prepare(raw)
    raw.with_name("copy").write_bytes(raw.read_bytes())
    raw.with_name("copy").replace(raw)
    assert "already prepared" in prepare(raw).out


def test_a_file_that_grows_while_it_is_read(raw, monkeypatch):
    stamp = Stamp.of(raw)
    grown = iter([stamp, stamp, Stamp(stamp.bytes + 1, stamp.changed_ns + 1)])
    monkeypatch.setattr(Stamp, "of", lambda path: next(grown))
    assert "clicks.csv: was changed while it was read; delete" in prepare(raw).err


def test_a_table_of_users_is_a_raw_file_too(tmp_path):
    def write(age: int) -> None:
        (tmp_path / "ratings.dat").write_text("1::1::5::978300760\n" * 20)
        (tmp_path / "movies.dat").write_text("1::Toy Story (1995)::Animation\n")
        (tmp_path / "users.dat").write_text(f"1::F::{age}::10::48067\n")

    write(25)
    prepared(movielens_files.recipe_1m(tmp_path), tmp_path / "out", "random")
    write(35)
    with pytest.raises(DataError, match=r"users\.dat: has other content of the same"):
        prepared(movielens_files.recipe_1m(tmp_path), tmp_path / "out", "random")


def test_half_a_note_of_what_was_begun(raw):
    work = raw.parent / "out" / ".work"
    work.mkdir(parents=True)
    (work / "counts").touch()  # else nothing was read yet, and the note is made anew
    for content in ("{", "[]"):
        (work / "made_from.json").write_text(content)
        assert "made_from.json: is damaged (" in prepare(raw).err
