"""Runs, exports and prepared data in a bucket of a local S3 server."""

import shutil
import subprocess
import time
from pathlib import Path

import boto3
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import embark_jax as ej
from embark_jax._base import bucket_copy
from embark_jax._base.bucket_copy import Upload, local_copy
from embark_jax._base.object_store import StorageError
from embark_jax.data import DataError
from tests import runs
from tests.buckets import denied, object_names, objects, s3_server
from tests.prepare.raw_files import write_table
from tests.runs import assert_refused, done, embark

CONFIG = """\
name: own
data: {kind: prepared, path: DATA}
model: {kind: dlrm, bottom: [8, 4], top: [8, 1]}
mesh: {nodes: 1, gpus_per_node: 2}
embedding: {dim: 4, tables: {user: {cluster: rb}}}
train: {batch_size: 64, steps: 8, log_every: 1, checkpoint_every: 2}
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server; this machine's copies are in a folder of the test."""
    monkeypatch.setenv("EMBARK_DATA", str(tmp_path / "cache"))
    with s3_server() as server:
        yield server


def test_a_copy_is_what_the_bucket_has(server, tmp_path):
    """Files come, change and go there; a copy fetches what has changed alone."""
    source, url = tmp_path / "source", "s3://bucket/some/folder"
    (source / "sub").mkdir(parents=True)
    files = {"a": b"1", "sub/b": b"22", "sub/c": b"", "checkpoints/9/x": b"9"}
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    upload = Upload(source, url)
    upload(last="a")
    assert objects() == {f"some/folder/{name}": each for name, each in files.items()}
    del files["checkpoints/9/x"]

    def read() -> dict[str, bytes]:
        copy = local_copy(url, without=["checkpoints"])
        paths = [path for path in copy.rglob("*") if path.is_file()]
        return {path.relative_to(copy).as_posix(): path.read_bytes() for path in paths}

    assert read() == files
    times = {name: (local_copy(url) / name).stat().st_mtime_ns for name in files}
    (source / "a").write_bytes(b"2")  # of the same size
    (local_copy(url) / "left").write_bytes(b"here alone")
    upload()
    assert read() == files | {"a": b"2"}
    after = {name: (local_copy(url) / name).stat().st_mtime_ns for name in files}
    assert [name for name in files if times[name] != after[name]] == ["a"]
    with pytest.raises(StorageError, match="no such folder, or it is empty"):
        local_copy("s3://bucket/some/fold")


@pytest.mark.parametrize("name", ["sub/../../../../stray", "sub//../stray", "/stray"])
def test_no_object_is_copied_to_another_folder(server, name):
    boto3.client("s3").put_object(Bucket="bucket", Key=f"folder/{name}", Body=b"1")
    assert object_names() == [f"folder/{name}"]
    with pytest.raises(StorageError, match=rf"folder: has an object '{name}', must"):
        local_copy("s3://bucket/folder")
    with pytest.raises(StorageError, match="must end in the name of a folder"):
        local_copy("s3://bucket/folder/..")


def test_a_copy_that_was_cut_short_goes_on(server, tmp_path, monkeypatch):
    source, url = tmp_path / "source", "s3://bucket/folder"
    source.mkdir()
    names = [f"{i}" for i in range(4)]
    for name in names:
        (source / name).write_text(name)
    Upload(source, url)()
    monkeypatch.setattr(bucket_copy, "_AT_ONCE", 2)
    get, fetches = DirFileSystem.get, iter([True, False])

    def cut_short(files, names, paths):
        """The second fetch writes a part of a file, and ends."""
        if next(fetches):
            return get(files, names, paths)
        Path(paths[0]).write_text("x")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DirFileSystem, "get", cut_short)
        with pytest.raises(KeyboardInterrupt):
            local_copy(url)
    copy = bucket_copy.copy_of(url)
    before = {name: (copy / name).stat().st_mtime_ns for name in names[:2]}
    assert local_copy(url) == copy
    assert [(copy / name).read_text() for name in names] == names
    assert before == {name: (copy / name).stat().st_mtime_ns for name in names[:2]}


@pytest.fixture
def config(server, tmp_path) -> Path:
    """A config whose data are in the bucket; ``raw.csv`` beside it has raw rows."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "user": f"u{rng.integers(40)}",
            "film": int(rng.integers(100)),
            "age": int(rng.integers(18, 80)),
            "stars": int(rng.integers(1, 6)),
            "when": i,
        }
        for i in range(1000)
    ]
    raw = write_table(tmp_path / "raw.csv", rows)
    columns = "label=stars positive_from=3 time=when dense.age={transform: none}"
    data = tmp_path / "data"
    done("data", "prepare", "csv", "--raw", raw, "--out", data, *columns.split(" ", 3))
    Upload(data, "s3://bucket/data")()
    return runs.write_config(tmp_path, CONFIG.replace("DATA", "s3://bucket/data"))


@pytest.mark.slow
def test_a_run_lives_in_a_bucket(config, tmp_path):
    """Data, run and export there are the same as on a disk, to the last bit."""
    local, raw = tmp_path / "run", tmp_path / "raw.csv"
    done("train", config, "--workdir", local, f"data.path={tmp_path / 'data'}")
    where = "s3://bucket/runs/first"
    done("train", config, "--workdir", where, "train.steps=4")
    assert_refused(embark("train", config, "--workdir", where), "already holds a run")
    shutil.rmtree(tmp_path / "cache")  # goes on, on another machine
    resumed = done("train", config, "--workdir", where, "--resume")
    assert "resumed at step 4 of 8" in resumed.out
    there = local_copy(where, without=["checkpoints"])
    assert runs.losses(there) == runs.losses(local)
    objects_there = object_names("runs/first")
    names = {name.split("/")[2] for name in objects_there}
    wanted = "config.yaml encoding metrics.jsonl plan.json"
    wanted += " report.html tensorboard checkpoints"
    assert names == {*wanted.split()}
    assert not any(name.endswith("writer.json") for name in objects_there)
    done("export", where, "--out", "s3://bucket/export")
    done("export", local, "--out", tmp_path / "export")
    refused = embark("export", where, "--out", "s3://bucket/export")
    assert_refused(refused, "s3://bucket/export: is not empty, must be a new folder")
    for name in ("tables/user.safetensors", "dense.safetensors", "model.onnx"):
        expected = (tmp_path / "export" / name).read_bytes()
        assert objects("export")[f"export/{name}"] == expected
    scores = []
    for folder in (local, where, "s3://bucket/export"):
        out = tmp_path / "scores.csv"
        done("predict", folder, "--in", raw, "--out", out)
        scores.append(np.loadtxt(out, skiprows=1))
    np.testing.assert_array_equal(scores[1], scores[0])
    np.testing.assert_allclose(scores[2], scores[0], rtol=1e-5)
    by_folder = done("evaluate", local, f"data.path={tmp_path / 'data'}").out
    assert done("evaluate", where).out == by_folder
    _, trainer = ej.load_run(where, step=6)
    assert trainer.step == 6
    # A flipped bit of the copy is found.
    file = next(local_copy("s3://bucket/data").glob("train/*.arrow"))
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DataError, match="is not as it was written"):
        ej.PreparedData("s3://bucket/data").train_batch(0, 500)


@pytest.mark.slow
def test_a_bucket_that_fails_is_told_before_any_work(config, server, tmp_path):
    where = "s3://bucket/run"
    for other in (
        "--workdir s3://none/run",
        f"--workdir {where} data.path=s3://none/a",
    ):
        refused = embark("train", config, *other.split())
        assert_refused(refused, "cannot be used (The specified bucket does not exist)")
    with denied():
        refused = embark("train", config, "--workdir", where)
        assert_refused(refused, "the bucket cannot be used (")
    assert not object_names("run")
    server.stop()
    refused = embark("train", config, "--workdir", where)
    assert_refused(refused, f"{where}: the bucket cannot be used (Could not connect")
    assert_refused(embark("predict", where, "--in", config), "Could not connect")


@pytest.mark.slow
def test_a_bucket_that_goes_in_mid_run_ends_it(config, server, tmp_path):
    """The run says so, keeps its metrics here, and goes on when the bucket is back."""
    where, log = "s3://bucket/run", tmp_path / "log"
    long = "train.steps=100000", "train.checkpoint_every=20"
    with log.open("w") as out:
        command = "train", config, "--workdir", where, *long
        process = runs.start(*command, stdout=out, stderr=subprocess.STDOUT)
        while "run/checkpoints/20/commit_success.txt" not in object_names(
            "run/checkpoints"
        ):
            assert process.poll() is None
            time.sleep(0.2)
        refused = embark("train", config, "--workdir", where, "--resume")
        assert_refused(refused, "another run writes here; stop it, or use")
        server.stop()
        assert process.wait(120) == 1
    error = log.read_text().rpartition("error:")[2]
    assert "s3://bucket/run" in error
    assert "Could not connect" in error or "could not be written" in error
    server.start()
    steps = [
        int(name.split("/")[2])
        for name in object_names("run/checkpoints")
        if name.count("/") == 3 and name.endswith("commit_success.txt")
    ]
    last = f"train.steps={max(steps) + 2}"
    resumed = done("train", config, "--workdir", where, "--resume", last)
    assert f"resumed at step {max(steps):,} of" in resumed.out


def test_commands_look_into_a_bucket(server):
    where = "s3://bucket/none"
    for command in ("evaluate {}", "export {} --out out", "predict {} --in ."):
        refused = embark(*command.format(where).split())
        assert_refused(refused, f"{where}: there is no such folder, or it is empty")
