"""What a command writes is nothing that it reads, whatever leads there."""

import os
import shutil
from pathlib import Path

import pytest

from embark_jax.cli.paths import check_outputs
from tests import runs
from tests.days import prepare_table, table_of
from tests.runs import done, embark

TABLES = "- {rows: 100, dim: 4, hotness: 2}\n"
LINKS = {
    "itself": lambda path: path,
    "a symbolic link": lambda path: link(path, Path.symlink_to),
    "a hard link": lambda path: link(path, Path.hardlink_to),
    "another path": lambda path: path.parent / ".." / path.parent.name / path.name,
    "a relative path": lambda path: Path(os.path.relpath(path)),
}


def link(path: Path, make) -> Path:
    other = path.with_name(f"link{path.suffix}")
    make(other, path)
    return other


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare_table(folder / "raw", table_of(0), folder / "data")


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared, tmp_path / "data")
    Path("rows").mkdir()
    for name in ("rows.csv", "rows/a.csv"):
        Path(name).write_text("user\n1\n")
    Path("tables.yaml").write_text(TABLES)
    Path("statistics.json").write_text("{}")
    Path("prepared.yaml").write_text("data: {kind: prepared, path: data}\n")
    runs.write_config(tmp_path)
    return tmp_path


@pytest.mark.parametrize("way", LINKS)
@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("predict run --in rows.csv --out", "rows.csv"),
        ("predict run --in rows --out", "rows/a.csv"),
        ("plan tiny.yaml --out", "tiny.yaml"),
        ("plan tiny.yaml --html", "tiny.yaml"),
        ("plan prepared.yaml --out", "data/data.json"),
        ("plan tables.yaml --out", "tables.yaml"),
        ("plan tiny.yaml --stats statistics.json --out", "statistics.json"),
        ("simulate tiny.yaml --trace", "tiny.yaml"),
        ("data stats tiny.yaml --out", "tiny.yaml"),
        ("data stats data --out", "data/data.json"),
        ("data stats prepared.yaml --out", "data/data.json"),
    ],
)
def test_what_is_read_is_not_written(folder, command, read, way):
    out = LINKS[way](folder / read)
    before = runs.snapshot(folder)
    outcome = embark(*command.split(), out)
    option = command.split()[-1]
    runs.assert_refused(outcome, f"{option} {out}: is", "name another file")
    assert runs.snapshot(folder) == before


def test_two_outputs_are_two_files(folder):
    outcome = embark("plan tables.yaml --out new.json --html ./new.json")
    runs.assert_refused(outcome, "--out new.json: is the file of --html, too")
    outcome = embark("plan tables.yaml --out data")
    runs.assert_refused(outcome, "--out data: is a folder, must be a file")


def test_what_was_written_before_is_written_again(folder):
    for _ in range(2):
        done("plan tables.yaml --out plan.json --html data/plan.html")
    scores = folder / "data/scores.csv"
    scores.touch()
    check_outputs({"out": scores}, {"folder": folder / "data"})
