"""Paths that no file system holds are refused before anything is written."""

import inspect
from pathlib import Path

import pytest

import embark_jax as ej
from embark_jax._base.storage import StorageError, local
from embark_jax.config import ExperimentConfig
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


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_makes_a_folder_of_a_scheme(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    refused = embark(*command.format(config=config).split())
    assert_refused(
        refused, ":// cannot be read or written yet, must be a path of a file"
    )
    assert refused.err.count("\n") <= 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "enter",
    [
        lambda path: ej.PreparedData(path),
        lambda path: ej.load_scorer(path),
        lambda path: ej.load_run(path),
        lambda path: ej.load_config(path),
        lambda path: RowEncoder(path),
        lambda path: ExperimentConfig(data={"kind": "prepared", "path": path}),
        lambda path: ExperimentConfig(
            data={"kind": "synthetic"}, embedding={"scratch": path}
        ),
    ],
    ids=lambda enter: inspect.getsource(enter).strip().split(":", 1)[1][:30],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_the_doors_of_python(enter, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="hdfs:// cannot be read or written yet"):
        enter(kind("hdfs://b/run.yaml"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["a", "/a/b", "../a", "a:b", "day_0:1/x", "."])
def test_paths_of_file_systems_pass(path):
    assert local(path) == Path(path)


def test_the_message_names_the_path_as_it_was_given():
    for path in ("s3://bucket/run", Path("s3://bucket/run")):
        with pytest.raises(StorageError, match=r"^s3://bucket/run: s3:// cannot"):
            local(path)
