"""Metrics of a run on prepared data, against NumPy on the values of the raw rows.

Rows of missing and of rare values are no items and no users.
"""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import embark_jax as ej
from embark_jax._base.files import read_arrow
from tests import runs
from tests.prepare.raw_files import write_rows

HEADER = ("label", "user", "shop", "item", "part")
CONFIG = """\
data: {kind: prepared, path: %s}
model: {kind: two_tower, items: [item], tower: [4], uniform_negatives: 2}
embedding: {dim: 4, tables: {item: {rows: 40}}}
train:
  batch_size: 32
  steps: 8
  eval_every: 4
  retrieval: {at: [1, 3]}
"""


def raw_rows() -> list[tuple]:
    """Most training rows have items of their own, which are too rare for a row. Of test
    rows, some have a known user or item, some a rare, a new or a missing one."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(96):
        item = f"i{rng.integers(8)}" if i % 3 == 0 else f"tail{i}"
        rows.append((1, f"u{rng.integers(6)}", f"s{i % 9}", item, "train"))
    for part in ("validation", "test"):
        for i in range(60):
            user = ("", f"u{i % 6}", f"new{i % 4}", f"once{i % 5}")[i % 4]
            item = ("", f"i{rng.integers(8)}", f"fresh{i}", f"tail{i + 1}")[i % 5 % 4]
            label = int(rng.random() < 0.4)
            rows.append((label, user, f"s{rng.integers(9)}", item, part))
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by_value")
    write_rows(folder / "rows.csv", HEADER, raw_rows())
    prepare = ("data", "prepare", "csv", "--raw", folder / "rows.csv")
    options = ("split=column=part", "min_count=2", "hash_columns.shop=4")
    runs.done(*prepare, "--out", folder / "data", *options)
    config = runs.write_config(folder, CONFIG % (folder / "data"))
    runs.done("train", config, "--workdir", folder / "run")
    return folder / "run"


def of_part(part: str) -> dict[str, np.ndarray]:
    columns = zip(*(row for row in raw_rows() if row[-1] == part), strict=True)
    return dict(zip(HEADER, map(np.array, columns), strict=True))


@pytest.mark.slow
def test_groups_are_users_with_a_row(trained, monkeypatch):
    run, trainer = ej.load_run(trained)
    logits = np.concatenate(
        [np.asarray(x) for _, x in trainer.predict(run.dataset.test_batches(32))]
    )
    raw = of_part("test")
    known = read_arrow(trained.parent / "data" / "vocabulary" / "user.arrow")
    aucs, sizes = [], []
    for value in known["key"].to_pylist():
        mine = raw["user"] == value
        labels, scores = raw["label"][mine], logits[mine]
        if 0 < labels.sum() < len(labels):
            aucs.append(roc_auc_score(labels, scores))
            sizes.append(len(labels))
    found = runs.shown_results(monkeypatch)
    runs.done("evaluate", trained, "--group-by", "user", "--k", 100)
    assert found["test_gauc"] == pytest.approx(np.average(aucs, weights=sizes))


@pytest.mark.slow
def test_items_that_share_rows_have_no_hit_rate(trained, tmp_path):
    config = trained.parent / "tiny.yaml"
    model = "model={kind: two_tower, items: [shop], tower: [4]}"
    outcome = runs.embark("train", config, "--workdir", tmp_path / "run", model)
    assert outcome.code
    assert "table 'shop' is hashed: several items share a row" in outcome.err
