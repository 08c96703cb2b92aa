"""Preparing: a folder appears whole or not at all, and what is damaged is said."""

import gzip
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from embark_jax.data import DataError, PreparedData
from embark_jax.data import manifest as manifests
from embark_jax.data.pipeline import Progress, silent
from embark_jax.data.prepare import criteo, encode
from embark_jax.data.prepare.run import Options, prepare
from tests import runs
from tests.data.prepare.raw_files import criteo_lines
from tests.runs import done, embark

OPTIONS = Options(split="time", min_count=2)


@pytest.fixture
def raw(tmp_path, monkeypatch) -> Path:
    """A folder with Criteo's file, gzip, of ten pieces."""
    folder = tmp_path / "raw"
    folder.mkdir()
    text = "".join(f"{line}\n" for line in criteo_lines(200)).encode()
    (folder / "train.txt.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(encode, "CHUNK_ROWS", 30)
    return folder


def prepare_in(raw: Path, out: Path, progress: Progress = silent):
    return prepare(criteo.kaggle(raw), out, OPTIONS, {}, progress)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("stage", ["read", "count", "encode"])
def test_a_stopped_command_leaves_nothing_and_runs_again(raw, tmp_path, stage):
    whole, folder = tmp_path / "whole", tmp_path / "days"
    prepare_in(raw, whole)

    def stop(at, done, total):
        if at == stage and done > total / 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare_in(raw, folder / "out", stop)
    assert list(folder.iterdir()) == []
    killed = folder / ".out.part"  # a process that is killed leaves its unfinished work
    (killed / "train").mkdir(parents=True)
    (killed / "train" / "000-000000.arrow").write_text("half")
    prepare_in(raw, folder / "out")
    assert [path.name for path in folder.iterdir()] == ["out"]
    finished = runs.snapshot(folder / "out")
    assert {p.relative_to(folder / "out"): data for p, data in finished.items()} == {
        p.relative_to(whole): data for p, data in runs.snapshot(whole).items()
    }


def test_a_folder_that_holds_something_is_left_as_it_is(raw, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    prepare_in(raw, out)  # an empty one will do
    before = runs.snapshot(tmp_path)
    with pytest.raises(DataError, match="out: holds files; take another --out, or del"):
        prepare_in(raw, out)
    with pytest.raises(DataError, match="z: is a file, must be a folder; take another"):
        prepare_in(raw, raw / "train.txt.gz")
    assert runs.snapshot(tmp_path) == before


def test_bad_lines_stop_the_command_or_are_counted(raw, tmp_path):
    lines = criteo_lines(200)
    lines[17] = lines[17].rpartition("\t")[0]
    lines[150] = lines[150][:-8] + "zzzzzzzz"
    (raw / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ("data", "prepare", "criteo-kaggle", "--raw", raw)
    strict = embark(*command, "--out", tmp_path / "strict")
    assert (strict.code, strict.out) == (2, "")
    assert re.match(
        r"error: .*train\.txt, line 18: has 39 columns, must have 40", strict.err
    )

    out = tmp_path / "out"
    lenient = done(*command, "--out", out, "--on-bad-line", "skip")
    assert "170 train, 14 validation, 14 test samples" in lenient.out
    assert "left out 2 bad lines; the first of them:" in lenient.out
    assert f"{raw}/train.txt, line 18: has 39 columns, must have 40" in lenient.out
    assert f"{raw}/train.txt, line 151: column C26: value is 'zzzzzzzz'" in lenient.out
    assert manifests.load(out).skipped_lines == 2


def test_statistics_of_a_folder_and_a_file_that_is_missing(raw, tmp_path):
    out, plot = tmp_path / "out", tmp_path / "plot.png"
    done("data", "prepare", "criteo-kaggle", "--raw", raw, "--out", out)
    stats = done("data", "stats", out, "--plot", plot)
    assert "Bags of 172 samples" in stats.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(out / "test")
    refused = embark("data", "stats", out)
    assert refused.code == 2
    assert re.search(r"test/000-\d+\.arrow: is missing, must have", refused.err)


def test_missing_dense_values_are_told(tmp_path):
    """From the file over the manifest to the final record, and before training."""
    rows = [
        f"{i % 2},{'' if i % 4 == 0 else 30 + i % 50},0.5,w{i % 7}" for i in range(400)
    ]
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    (raw / "a.csv").write_text("\n".join(["label,age,share,word", *rows]) + "\n")
    command = ("data", "prepare", "csv", "--raw", raw, "--out", out)
    prepared = done(*command, "dense={age: none, share: none}")
    assert "column 'age': 100 missing values (25.0%) are 0\n" in prepared.out
    assert manifests.load(out).missing_dense == {"age": 100}
    ages = np.concatenate(
        [batch.dense[:, 0] for batch in PreparedData(out).test_batches(100)]
    )
    assert (ages == 0).any()
    assert ages.max() > 30

    config = runs.write_config(
        tmp_path,
        f"name: own\ndata: {{kind: prepared, path: {out}}}\n"
        "model: {kind: dlrm, bottom: [4], top: [1]}\n"
        "embedding: {dim: 4}\ntrain: {batch_size: 16, steps: 2}\n",
    )
    trained = done("train", config, "--workdir", tmp_path / "run")
    record = runs.final(tmp_path / "run")
    missing = {k: v for k, v in record.items() if k.startswith("missing_dense")}
    assert missing == {"missing_dense/age": 100}
    assert "the data: 100 missing values of 'age' are 0\n" in trained.out


def test_a_run_does_not_go_on_with_other_data_and_says_what_to_do(tmp_path):
    for day in "ab":
        lines = [f"{i % 2},{day}{i % 7}" for i in range(200)]
        raw = tmp_path / f"{day}.csv"
        raw.write_text("\n".join(["label,word", *lines]) + "\n")
        out = tmp_path / day
        done("data", "prepare", "csv", "--raw", raw, "--out", out)
    config = runs.write_config(
        tmp_path,
        f"name: own\ndata: {{kind: prepared, path: {tmp_path / 'a'}}}\n"
        "model: {kind: deepfm, deep: [4]}\n"
        "embedding: {dim: 4}\ntrain: {batch_size: 16, steps: 2}\n",
    )
    run = ("train", config, "--workdir", tmp_path / "run")
    done(*run)
    runs.assert_refused(
        embark(*run, f"data.path={tmp_path / 'b'}", "--resume"),
        "2: belongs to another experiment:\n  data.files is ",
        "(data.files is a digest of prepared data); to train on others, begin a run in "
        "another --workdir",
    )


def test_sigterm_removes_what_is_unfinished(tmp_path):
    """Also in the midst of a query."""
    raw = tmp_path / "rows.csv"
    lines = (f"{i % 2},{i * 7919 % 1_000_003}\n" for i in range(1_000_000))
    raw.write_text("".join(["label,a\n", *lines]))
    command = ["data", "prepare", "csv", "--raw", raw, "--out", tmp_path / "out"]
    runs.end_by_sigterm(command, (tmp_path / ".out.part").exists)
    assert list(tmp_path.iterdir()) == [raw]
