"""Names of files that come from a file are confined to the folder, and a file that
cannot be written is named."""

import errno
import os
import re

import pytest

from embark_jax._base.errors import DataError
from embark_jax._base.files import confined, replacing


@pytest.fixture
def folder(tmp_path):
    """A folder with a link to another one, and a link to it."""
    for path in ("folder/train", "outside"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "outside" / "a").touch()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to("folder")
    return tmp_path / "folder"


@pytest.mark.parametrize("name", ["a.npy", "train/a.npy", "train/../a.npy"])
def test_names_in_the_folder_are_paths(folder, name):
    for each in (folder, folder.parent / "link"):
        assert confined(each, name) == each / name


@pytest.mark.parametrize(
    "name", ["../a.npy", "train/../../a.npy", "/etc/passwd", "", ".", "a\0b", "link/a"]
)
def test_names_that_lead_out_of_the_folder_are_refused(folder, name):
    with pytest.raises(DataError, match="must lie in this folder"):
        confined(folder, name)


def test_a_full_disk_is_said_with_the_file(tmp_path):
    path = tmp_path / "part.arrow"
    path.with_name(f"part.arrow.{os.getpid()}.part").symlink_to("/dev/full")

    def write() -> None:
        with replacing(path) as scratch, scratch.open("wb", buffering=0) as file:
            file.write(bytes(100))

    with pytest.raises(OSError, match=re.escape(str(path))) as found:
        write()
    assert found.value.errno == errno.ENOSPC
    assert not path.exists()
