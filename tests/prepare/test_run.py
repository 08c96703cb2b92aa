"""Preparing: a folder appears whole or not at all, and what is damaged is said."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from embark_jax.data import DataError
from embark_jax.data import manifest as manifests
from embark_jax.data.columns import Columns, Preparation
from embark_jax.data.pipeline import Progress, silent
from embark_jax.prepare import encode, own_files, sql
from embark_jax.prepare.run import prepare
from tests import runs
from tests.runs import done, embark

COLUMNS = Columns.model_validate({"dense": {"age": "none", "share": "none"}})
CONFIG = """\
name: own
data: {kind: prepared, path: DATA}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4}
train: {batch_size: 16, steps: 2}
"""


def lines(word: str = "w") -> list[str]:
    """A header and 400 lines; a quarter have no age."""
    rows = (
        f"{i % 2},{'' if i % 4 == 0 else 30 + i % 50},0.5,{word}{i % 7}"
        for i in range(400)
    )
    return ["label,age,share,word", *rows]


@pytest.fixture
def raw(tmp_path, monkeypatch) -> Path:
    """A folder with a compressed file of ten pieces."""
    monkeypatch.setattr(encode, "CHUNK_ROWS", 40)
    folder = tmp_path / "raw"
    folder.mkdir()
    text = "\n".join(lines()) + "\n"
    (folder / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def command(raw: Path, out: Path) -> tuple:
    columns = "dense={age: none, share: none}"
    return "data", "prepare", "csv", columns, "--raw", raw, "--out", out


def prepare_in(raw: Path, out: Path, progress: Progress = silent) -> None:
    options = Preparation(split="time", min_count=2)
    prepare(own_files.csv(raw, COLUMNS), out, options, {}, progress)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("stage", ["read", "count", "encode"])
def test_a_stopped_command_leaves_nothing_and_runs_again(raw, tmp_path, stage):
    whole, folder = tmp_path / "whole", tmp_path / "days"
    whole.mkdir()  # an empty folder will do
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


def test_bad_lines_are_left_out_and_counted(tmp_path):
    """Where they stop the command, see ``tests/bad_input/cases.yaml``."""
    bad = lines()
    bad[17] = bad[17].rpartition(",")[0]
    bad[150] = "1,young,0.5,w"
    raw, out = tmp_path / "rows.csv", tmp_path / "out"
    raw.write_text("\n".join(bad) + "\n")
    options = "on_bad_line=skip", "split=time"
    lenient = done(*command(raw, out), *options)
    assert "359 train, 20 validation, 19 test samples" in lenient.out
    assert "left out 2 bad lines; the first of them:" in lenient.out
    assert f"{raw}, line 18: has 3 columns, must have 4" in lenient.out
    assert f"{raw}, line 151: column age: value is 'young'" in lenient.out
    assert manifests.load(out).skipped_lines == 2


def test_missing_values_statistics_and_a_missing_file_are_told(raw, tmp_path):
    out = tmp_path / "out"
    prepared = done(*command(raw, out), "split=time")
    assert "column 'age': 100 missing values (25.0%) are 0\n" in prepared.out
    assert manifests.load(out).missing_dense == {"age": 100}
    assert "Bags of 360 samples" in done("data", "stats", out).out
    shutil.rmtree(out / "test")
    refused = embark("data", "stats", out)
    assert refused.code == 2
    assert re.search(r"test/000-\d+\.arrow: is missing, must have", refused.err)


@pytest.mark.slow
def test_a_run_tells_of_missing_values_and_resumes_on_no_other_data(raw, tmp_path):
    data, other, run = tmp_path / "data", tmp_path / "other", tmp_path / "run"
    done(*command(raw, data))
    config = runs.write_config(tmp_path, CONFIG.replace("DATA", str(data)))
    train = "train", config, "--workdir", run
    assert "the data: 100 missing values of 'age' are 0\n" in done(*train).out
    record = runs.final(run)
    missing = {k: v for k, v in record.items() if k.startswith("missing_dense")}
    assert missing == {"missing_dense/age": 100}

    (raw / "rows.csv.gz").unlink()
    (raw / "rows.csv").write_text("\n".join(lines("v")) + "\n")
    done(*command(raw, other))
    runs.assert_refused(
        embark(*train, f"data.path={other}", "--resume"),
        "2: belongs to another experiment:\n  data.files is ",
        "(data.files and values are digests of prepared data); to train on others, "
        f"begin a run in another --workdir; train.init_from={run} goes on from this",
    )


def test_sigterm_removes_what_is_unfinished(tmp_path):
    """Also in the midst of a query."""
    raw = tmp_path / "rows.csv"
    lines = (f"{i % 2},{i * 7919 % 1_000_003}\n" for i in range(1_000_000))
    raw.write_text("".join(["label,a\n", *lines]))
    command = ["data", "prepare", "csv", "--raw", raw, "--out", tmp_path / "out"]
    runs.end_by_sigterm(command, (tmp_path / ".out.part").exists)
    assert list(tmp_path.iterdir()) == [raw]


def test_too_little_memory_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sql, "host_memory_bytes", lambda: 2**25)
    with (
        sql.Database(tmp_path / "spill") as database,
        pytest.raises(DataError, match="may take 16MiB of memory, half of this mach"),
    ):
        database.rows("SELECT list(range) FROM range(3_000_000)")
