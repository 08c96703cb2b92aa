import hashlib
import subprocess
import zipfile

import pytest

from embark_jax.data import (
    DataError,
    download,
    fetch_movielens_100k,
    movielens_100k_folder,
)

TEXTS = {name: f"contents of {name}\n".encode() for name in download._FILE_SHA256}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A stand-in for the wheel, with the hashes that go with it."""
    path = tmp_path / "stand-in.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("recbole/other.py", "print('never extracted')")
        for name, text in TEXTS.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}
    monkeypatch.setattr(download, "_FILE_SHA256", hashes)
    monkeypatch.setattr(
        download, "_WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest()
    )
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_puts_just_the_three_files_in_the_folder(wheel, tmp_path):
    folder = tmp_path / "new" / "ml"
    assert fetch_movielens_100k(folder, wheel) == folder
    assert contents(folder) == TEXTS


def test_is_idempotent_and_mends_what_is_damaged(wheel, tmp_path, monkeypatch):
    folder = tmp_path / "ml"
    folder.mkdir()
    (folder / "ml-100k.user").write_text("cut")
    (folder / "notes.txt").write_text("mine")
    fetch_movielens_100k(folder, wheel)
    assert contents(folder) == TEXTS | {"notes.txt": b"mine"}
    monkeypatch.setattr(subprocess, "run", None)  # a download would fail
    assert fetch_movielens_100k(folder) == folder


def test_a_wheel_with_another_hash_is_never_opened(wheel, tmp_path):
    with wheel.open("ab") as file:
        file.write(b"tampered")
    with pytest.raises(
        DataError, match=r"stand-in.whl: SHA-256 is [0-9a-f]{64}, must be"
    ):
        fetch_movielens_100k(tmp_path / "ml", wheel)
    assert contents(tmp_path / "ml") == {}


def test_without_pip_or_network_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    message = (
        r"(?s)pip download .* failed: .*; .* run `pip download --no-deps recbole==1"
    )
    with pytest.raises(DataError, match=message) as info:
        fetch_movielens_100k(tmp_path / "ml")
    assert "pass it with `--wheel FILE`" in str(info.value)


def test_where_the_data_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EMBARK_DATA", str(tmp_path))
    assert movielens_100k_folder() == tmp_path / "ml-100k"
    monkeypatch.delenv("EMBARK_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert movielens_100k_folder() == tmp_path / ".cache" / "embark_jax" / "ml-100k"
