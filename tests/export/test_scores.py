"""A score that is no number is refused, and nothing is written."""

from pathlib import Path

import numpy as np
import pytest

import embark_jax as ej
from embark_jax import export
from embark_jax.data import DataError
from embark_jax.data import encoding as encoding_files
from embark_jax.data.columns import Columns, Preparation
from embark_jax.export.lookup import LookupTable
from embark_jax.plans.tables import FeatureSpec
from embark_jax.prepare import own_files
from embark_jax.prepare.raw_rows import RowEncoder
from embark_jax.prepare.run import prepare
from tests import runs
from tests.runs import done, embark

COLUMNS = Columns.model_validate({"dense": {"age": {}, "price": {}}})


def squares(dense, embeddings, valid):
    """Layers that overflow."""
    with np.errstate(over="ignore"):
        return (dense * dense).sum(axis=1) + embeddings["user"].sum(axis=1)


def id_scorer(layers=squares) -> ej.IdScorer:
    tables = {"user": LookupTable(np.ones((9, 2), np.float32))}
    return ej.IdScorer([FeatureSpec("user", "user")], 2, tables, layers, step=1)


@pytest.fixture
def scorer(tmp_path) -> ej.Scorer:
    raw, prepared = tmp_path / "raw.csv", tmp_path / "prepared"
    lines = (f"{i % 2},u{i % 3},{i},{i}" for i in range(20))
    raw.write_text("\n".join(["label,user,age,price", *lines]) + "\n")
    manifest = prepare(own_files.csv(raw, COLUMNS), prepared, Preparation(), {})[0]
    encoding_files.save_encoding(prepared, manifest, tmp_path / encoding_files.FOLDER)
    return ej.Scorer(RowEncoder(tmp_path), id_scorer())


def test_scores_of_ids_are_numbers():
    dense = np.zeros((3, 2), np.float32)
    dense[2, 1] = -1e21
    message = (
        r"sample 2: the score is inf.*; its largest number is -1e\+21, of column 1"
    )
    with pytest.raises(DataError, match=message):
        id_scorer().logits(dense, {"user": np.ones((3, 1), int)})
    of_tasks = id_scorer(
        lambda dense, *rest: np.stack([dense[:, 0], squares(dense, *rest)], 1)
    )
    with pytest.raises(DataError, match="sample 2: the score is"):
        of_tasks.logits(dense, {"user": np.ones((3, 1), int)})


def test_scores_of_rows_are_numbers(scorer, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "load_scorer", lambda *_, **__: scorer)
    rows, out = tmp_path / "rows.csv", tmp_path / "scores.csv"
    for label in ("", "label,"):
        value = label.replace("label", "1")
        good = f"{label}user,age,price\n{value}u1,2,3\n"
        rows.write_text(good)
        done("predict", tmp_path / "run", "--in", rows, "--out", out)
        before = out.read_bytes()
        rows.write_text(f"{good}{value}u1,2,1e21\n")
        outcome = embark("predict", tmp_path / "run", "--in", rows, "--out", out)
        where = f"{rows}, row 1: the score is inf"
        runs.assert_refused(outcome, where, "its largest number is 1e+21, of column pr")
        assert out.read_bytes() == before
        assert not embark("predict", tmp_path / "run", "--in", rows).out
    assert not list(Path(tmp_path).glob("*.part"))
