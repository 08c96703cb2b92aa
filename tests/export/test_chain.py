"""A chain of exports is, at each of its links, the whole export of that model."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embark_jax._base.files import read_arrow
from embark_jax.data import DataError
from embark_jax.data import manifest as manifests
from embark_jax.export import load_id_scorer, load_scorer, writing
from embark_jax.export.chain import Chain
from embark_jax.export.lookup import read_table
from tests import runs
from tests.days import config_of, prepare_days, prepare_table, table_of
from tests.runs import done, embark


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> tuple[Path, Path]:
    """Three runs on a day each, each from the one before; and a chain of them."""
    folder = tmp_path_factory.mktemp("chain")
    prepared, chain = prepare_days(folder), folder / "chain"
    for day in range(3):
        data = f"data={{kind: prepared, path: {prepared / f'day {day}'}}}"
        # Tables grow with the vocabulary.
        overrides = [data, "embedding.tables={user: {}, item: {}}", "train.steps=3"]
        if day:
            overrides.append(f"train.init_from={folder / f'run {day - 1}'}")
        config = config_of(folder, prepared)
        done("train", config, *overrides, "--workdir", folder / f"run {day}")
        done("export", folder / f"run {day}", "--out", chain, "--append", "--no-onnx")
        whole = folder / f"whole {day}"
        done("export", folder / f"run {day}", "--out", whole, "--no-onnx")
    return folder, chain


def rows_to_score(folder: Path) -> Path:
    """Raw rows of all days, and of one that no run has seen."""
    raw = folder / "rows"
    raw.mkdir(exist_ok=True)
    for day in range(4):
        pq.write_table(table_of(day), raw / f"{day}.parquet")
    return raw


def copy_links(chain: Path, out: Path, *numbers: int) -> Path:
    for number in numbers:
        shutil.copytree(chain / f"{number:06d}", out / f"{number:06d}")
    return out


def assert_same(scorer, whole: Path, raw: Path) -> None:
    expected = load_scorer(whole)
    assert scorer.step == expected.step
    np.testing.assert_array_equal(scorer.predict(raw), expected.predict(raw))


@pytest.mark.slow
def test_a_chain_is_the_whole_export_of_each_of_its_links(days, tmp_path):
    folder, chain = days
    raw = rows_to_score(tmp_path)
    copy = copy_links(chain, tmp_path / "copy", 0)
    scorer = load_scorer(copy)
    assert_same(scorer, folder / "whole 0", raw)
    assert scorer.refresh() == 0
    for day in (1, 2):
        copy_links(chain, copy, day)
        assert scorer.refresh() == 1
        assert_same(scorer, folder / f"whole {day}", raw)
    assert_same(load_scorer(chain), folder / "whole 2", raw)
    changes = load_id_scorer(folder / "whole 2").tables["user"].values
    links = Chain.read(chain).links
    assert [link.description.parent for link in links] == [
        None,
        *(link.digest for link in links[:-1]),
    ]
    np.testing.assert_array_equal(Chain.read(chain).table("user").values, changes)


@pytest.mark.slow
def test_changes_are_the_rows_that_changed(days):
    folder, chain = days
    old, new = (load_id_scorer(folder / f"whole {day}").tables for day in (0, 1))
    link = Chain.read(chain).links[1]

    for name in ("user", "item"):
        before, after = old[name].values, new[name].values
        grown = np.full_like(after, np.nan)
        grown[: len(before)] = before
        changed = np.flatnonzero((grown != after).any(axis=1))
        keys = read_table(link.folder, link.description, name).keys
        assert keys is not None
        assert keys.tolist() == changed.tolist()
        assert 0 < len(keys) < len(after)


@pytest.mark.slow
def test_vocabularies_are_published_as_far_as_they_are_new(days):
    folder, chain = days
    file = "encoding/vocabulary/user.arrow"
    for day in (1, 2):
        old, new = (
            read_arrow(folder / f"whole {n}" / file)["key"] for n in (day - 1, day)
        )
        added = read_arrow(chain / f"{day:06d}" / file)["key"]
        assert added.to_pylist() == new.to_pylist()[len(old) :]
        assert 0 < len(added) < len(old)
    encoding = Chain.read(chain).encoding()
    assert encoding is not None
    assert encoding.keys("user").to_pylist() == new.to_pylist()


@pytest.mark.slow
def test_other_rules_are_published_where_no_value_is_new(days, tmp_path):
    folder, path = days
    run = tmp_path / "run"
    shutil.copytree(folder / "run 2/encoding", run / "encoding")
    chain = Chain.read(path)
    writing.add_encoding(run, tmp_path / "same", chain)
    assert not (tmp_path / "same").exists()
    manifest = manifests.read(run / "encoding")
    values = manifest.values.model_copy(update={"missing": ("gone",)})
    manifest.model_copy(update={"values": values}).save(run / "encoding")
    writing.add_encoding(run, tmp_path / "link", chain)
    published = manifests.read(tmp_path / "link/encoding")
    assert published.values.missing == ("gone",)
    key = read_arrow(tmp_path / "link/encoding/vocabulary/user.arrow")["key"]
    assert not len(key)


@pytest.mark.slow
def test_scoring_goes_on_while_a_scorer_is_refreshed(days, tmp_path):
    folder, chain = days
    raw = rows_to_score(tmp_path)
    copy = copy_links(chain, tmp_path / "copy", 0)
    scorer, stop, answers = load_scorer(copy), threading.Event(), []

    def score():
        while not stop.is_set():
            answers.append(scorer.predict(raw))

    thread = threading.Thread(target=score)
    thread.start()
    copy_links(chain, copy, 1, 2)
    assert scorer.refresh() == 2
    stop.set()
    thread.join()
    assert answers
    assert all(np.isfinite(answer).all() for answer in answers)
    assert_same(scorer, folder / "whole 2", raw)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_chain", "message"),
    [
        (
            lambda chain: shutil.rmtree(chain / "000001"),
            r"000002: follows an export with the SHA-256 \w{64}, which is not among",
        ),
        (
            lambda chain: shutil.rmtree(chain / "000000"),
            "must have one whole export, which changes follow, has none",
        ),
        (
            lambda chain: shutil.copytree(chain / "000001", chain / "copy"),
            r"copy: follows the same export as .*000001",
        ),
        (
            lambda chain: (chain / "000001/dense.safetensors").write_bytes(b"x" * 8),
            r"000001/dense.safetensors: has 8 bytes, must have",
        ),
        (
            lambda chain: (chain / "000001/model.json").write_text(
                (chain / "000001/model.json").read_text().replace("item", "time")
            ),
            r"000001/model.json: ",
        ),
    ],
)
def test_a_broken_chain_names_the_link(days, tmp_path, break_chain, message):
    copy = copy_links(days[1], tmp_path / "copy", 0, 1, 2)
    break_chain(copy)
    with pytest.raises(DataError, match=message):
        load_scorer(copy)


@pytest.mark.slow
def test_changes_in_another_order_are_refused(days):
    _, chain = days
    model = load_id_scorer(chain / "000000")
    with pytest.raises(DataError, match="000002: follows the export with the SHA-256"):
        model.update(chain / "000002")
    model.update(chain / "000001")
    model.update(chain / "000002")
    assert model.step == 9


@pytest.mark.slow
def test_another_vocabulary_begins_another_chain(days, tmp_path):
    copy = copy_links(days[1], tmp_path / "chain", 0)
    data = prepare_table(tmp_path / "raw", table_of(1), tmp_path / "other")
    overrides = f"data={{kind: prepared, path: {data}}}", "train.steps=1"
    config = config_of(tmp_path, data)
    done("train", config, *overrides, "--workdir", tmp_path / "run")
    outcome = embark("export", tmp_path / "run", "--out", copy, "--append")
    runs.assert_refused(outcome, "values have other rows than in", "another chain")
    assert [path.name for path in copy.iterdir() if (path / "model.json").exists()]
