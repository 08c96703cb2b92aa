"""What a command writes is nothing that it reads, whatever leads there."""

import os
from pathlib import Path

import pytest

from tests import runs
from tests.runs import embark

WAYS = (
    lambda path: path,
    lambda path: link(path, Path.symlink_to),
    lambda path: link(path, Path.hardlink_to),
    lambda path: path.parent / ".." / path.parent.name / path.name,
    lambda path: Path(os.path.relpath(path)),
)


def link(path: Path, make) -> Path:
    other = path.with_name(f"{make.__name__}{path.suffix}")
    make(other, path)
    return other


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows").mkdir()
    for name in ("rows.csv", "rows/a.csv"):
        Path(name).write_text("user\n1\n")
    Path("tables.yaml").write_text("- {rows: 100, dim: 4, hotness: 2}\n")
    Path("statistics.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("predict run --in rows.csv --out", "rows.csv"),
        ("predict run --in rows --out", "rows/a.csv"),
        ("plan tables.yaml --html", "tables.yaml"),
        ("plan tables.yaml --stats statistics.json --out", "statistics.json"),
        ("simulate tables.yaml --trace", "tables.yaml"),
        ("data stats tables.yaml --out", "tables.yaml"),
    ],
)
def test_what_is_read_is_not_written(folder, command, read):
    outs = [way(folder / read) for way in WAYS]
    before = runs.snapshot(folder)
    option = command.split()[-1]
    for out in outs:
        outcome = embark(*command.split(), out)
        runs.assert_refused(outcome, f"{option} {out}: is read", "name another file")
    assert runs.snapshot(folder) == before
