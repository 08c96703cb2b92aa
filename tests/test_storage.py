"""Paths that no file system holds are refused before anything is written."""

from pathlib import Path

import pytest

import embark_jax as ej
from embark_jax._base.storage import local
from embark_jax.data.prepare.raw_rows import RowEncoder
from tests.runs import assert_refused, embark, write_config

COMMANDS = [
    "init s3://b/first.yaml",
    "train {config} --workdir hdfs://b/m",
    "train gs://b/tiny.yaml",
    "train {config} data.path=hdfs://b/d data.kind=prepared",
    "search s3://b/search.yaml",
    "search {config} --workdir s3://b/search",
    "evaluate hdfs://b/run",
    "plan {config} --html s3://b/plan.html",
    "simulate {config} --trace s3://b/trace.json",
    "export run --out hdfs://b/export",
    "predict hdfs://b/run --in rows.csv --out out.csv",
    "data prepare csv --raw s3://b/rows.csv --out out",
    "data prepare csv --raw rows.csv --out s3://b/out",
    "data stats gs://b/out",
    "data movielens-100k --out s3://b/out",
]


def test_no_command_makes_a_folder_of_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for command in COMMANDS:
        refused = embark(*command.format(config=config).split())
        rule = ":// cannot be read or written yet, must be a path of a file"
        assert_refused(refused, rule)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "enter",
    [ej.PreparedData, ej.load_scorer, ej.load_run, ej.load_config, RowEncoder],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_the_doors_of_python(enter, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = "hdfs:// cannot be read or written yet"
    with pytest.raises(ValueError, match=f"^hdfs://b/run.yaml: {rule}"):
        enter(kind("hdfs://b/run.yaml"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["a", "/a/b", "../a", "a:b", "day_0:1/x", "."])
def test_paths_of_file_systems_pass(path):
    assert local(path) == Path(path)
