"""Folders and files that two commands write at once."""

import threading
from pathlib import Path

import pytest

import embark_jax as ej
from embark_jax._base.bucket_copy import written
from embark_jax._base.config import ConfigError
from embark_jax._base.files import new_folder, replacing
from embark_jax.checkpoint.folder import CheckpointFolder
from embark_jax.data import DataError, PreparedData
from embark_jax.run.folder import RunFolder
from tests.prepare.raw_files import prepared, write_table


def test_a_folder_has_one_writer(tmp_path):
    """Whoever comes second is refused and takes nothing away; a killed one is none."""
    out = tmp_path / "out"
    (tmp_path / ".out.part" / "killed").mkdir(parents=True)
    (tmp_path / ".out.lock").touch()
    with new_folder(out) as folder:
        (folder / "first").touch()
        for second in (new_folder(out), written(out, "first")):
            with pytest.raises(DataError, match="out: another command writes it now"):
                second.__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["first"]
    with pytest.raises(DataError, match="holds files"):
        new_folder(out).__enter__()


@pytest.mark.parametrize(
    "name", ["~a", "-b", "k=v", "[c]*?", "d %41 é", "e\"'f", "g\\h"]
)
def test_names_of_folders_are_taken_as_they_are(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    folder.mkdir()
    rows = [{"label": i % 2, "user": f"u{i % 7}"} for i in range(60)]
    for suffix in ("csv", "parquet"):
        path = write_table(folder / f"rows.{suffix}", rows)
        prepared(path, folder / suffix)
        assert PreparedData(folder / suffix).train_samples == 52
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_run_has_no_backslash_in_its_folder(tmp_path):
    """TensorStore would write its checkpoints elsewhere."""
    path = tmp_path / "a\\b" / "run"
    for opened in (lambda: RunFolder(path).open(False), lambda: CheckpointFolder(path)):
        with pytest.raises(ConfigError, match=r"a backslash in .*another --workdir"):
            opened()


def test_two_preparations_at_once(tmp_path):
    """One of them prepares all, the other ends with an error."""
    rows = [{"label": i % 2, "user": f"u{i % 7}"} for i in range(60)]
    path = write_table(tmp_path / "rows.csv", rows)
    start, results = threading.Barrier(2), []

    def prepare():
        start.wait()
        try:
            results.append(prepared(path, tmp_path / "out"))
        except DataError as error:
            results.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (data,) = (each for each in results if not isinstance(each, DataError))
    assert sum(1 for each in results if isinstance(each, DataError)) == 1
    assert isinstance(data, ej.PreparedData)
    assert (data.folder / "vocabulary" / "user.arrow").exists()


def test_a_file_of_two_writers_is_that_of_the_last(tmp_path, monkeypatch):
    path = tmp_path / "scores.csv"
    with replacing(path) as first:
        first.write_text("first, whole")
        monkeypatch.setattr("os.getpid", lambda: 1)
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first, whole"
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]
