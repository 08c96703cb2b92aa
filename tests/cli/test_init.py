"""``embark init``: a starter config, also where there is no checkout."""

from embark_jax.config import reading
from tests.config_files import CONFIGS, YAML
from tests.runs import assert_refused, done, embark


def test_a_new_config_is_the_shipped_one(tmp_path):
    for shipped in YAML[::8]:
        out = tmp_path / f"{shipped.stem}-{shipped.parent.name}.yaml"
        name = shipped.relative_to(CONFIGS).with_suffix("").as_posix()
        outcome = done("init", out, "--example", name)
        assert f"embark train {out}" in outcome.out.replace("\n", "")
        assert reading.load(out) == reading.load(shipped)


def test_what_is_there_is_not_overwritten(tmp_path):
    out = tmp_path / "mine.yaml"
    out.write_text("mine")
    assert_refused(embark("init", out), "exists already")
    assert out.read_text() == "mine"
    unknown = embark("init", tmp_path / "a.yaml", "--example", "quickstrat")
    assert_refused(unknown, "quickstart")
    assert_refused(embark("init", tmp_path / "a.txt"), ".yaml")


def test_what_comes_with_the_package_is_named_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reading.load("quickstart") == reading.load(CONFIGS / "quickstart.yaml")
    assert len(reading.load("t7").embedding.tables) == 7
    missed = embark("train", "configs/quickstart.yaml")
    assert_refused(missed, "no such file", "did you mean quickstart?")
    (tmp_path / "t7").mkdir()  # a folder is no config
    assert len(reading.load("t7").embedding.tables) == 7
