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
    """A stand-in for the wheel, where pip finds it."""
    path = tmp_path / "wheels" / download._WHEEL_NAME
    path.parent.mkdir()
    about = "recbole-1.2.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("recbole/other.py", "print('never extracted')")
        for name, text in TEXTS.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
        text = "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n"
        archive.writestr(f"{about}/METADATA", text)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}
    monkeypatch.setattr(download, "_FILE_SHA256", hashes)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_puts_just_the_three_files_in_the_folder(wheel, tmp_path):
    folder = tmp_path / "new" / "ml"
    assert fetch_movielens_100k(folder) == folder
    assert contents(folder) == TEXTS


def test_is_idempotent_and_mends_what_is_damaged(wheel, tmp_path, monkeypatch):
    folder = tmp_path / "ml"
    folder.mkdir()
    (folder / "ml-100k.user").write_text("cut")
    (folder / "notes.txt").write_text("mine")
    fetch_movielens_100k(folder)
    assert contents(folder) == TEXTS | {"notes.txt": b"mine"}
    monkeypatch.setattr(subprocess, "run", None)  # a download would fail
    assert fetch_movielens_100k(folder) == folder


def test_files_with_another_hash_are_not_taken(wheel, tmp_path, monkeypatch):
    monkeypatch.setitem(download._FILE_SHA256, "ml-100k.inter", "0" * 64)
    with pytest.raises(DataError, match=r"SHA-256 of ml-100k.inter is [0-9a-f]{64}"):
        fetch_movielens_100k(tmp_path / "ml")
    assert contents(tmp_path / "ml") == {}


def test_without_pip_or_network_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    message = (
        r"(?s)pip download .* failed: .*; .* run `pip download --no-deps recbole==1"
    )
    with pytest.raises(DataError, match=message) as info:
        fetch_movielens_100k(tmp_path / "ml")
    assert "set PIP_FIND_LINKS to its folder" in str(info.value)


def test_where_the_data_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("EMBARK_DATA", str(tmp_path))
    assert movielens_100k_folder() == tmp_path / "ml-100k"
    monkeypatch.delenv("EMBARK_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert movielens_100k_folder() == tmp_path / ".cache" / "embark_jax" / "ml-100k"
