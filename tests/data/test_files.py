"""Names of files that come from a file are confined to the folder."""

import pytest

from embark_jax._base.errors import DataError
from embark_jax._base.files import confined


@pytest.mark.parametrize("name", ["a.npy", "train/a.npy", "train/../a.npy", "new.npy"])
def test_names_in_the_folder_are_paths(tmp_path, name):
    (tmp_path / "train").mkdir()
    assert confined(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize(
    "name",
    ["../a.npy", "train/../../a.npy", "/etc/passwd", "", ".", "a\0b", "link/a"],
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for each in (folder, outside):
        each.mkdir()
    (outside / "a").touch()
    (folder / "link").symlink_to(outside)
    with pytest.raises(DataError, match="must lie in this folder"):
        confined(folder, name)


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert confined(tmp_path / "link", "a") == tmp_path / "link" / "a"
