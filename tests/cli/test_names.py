"""Configs that come with the package have names, also where there is no checkout."""

from embark_jax.config import reading
from tests.config_files import CONFIGS
from tests.runs import assert_refused, embark


def test_what_comes_with_the_package_is_named_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reading.load("quickstart") == reading.load(CONFIGS / "quickstart.yaml")
    assert len(reading.load("t7").embedding.tables) == 7
    missed = embark("train", "configs/quickstart.yaml")
    assert_refused(missed, "no such file", "did you mean quickstart?")
    (tmp_path / "t7").mkdir()  # a folder is no config
    assert len(reading.load("t7").embedding.tables) == 7
