"""Accuracy on real data, by the shipped config: above a linear model, on any mesh."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from embark_jax.data import Batch, PreparedData
from tests import runs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "movielens_100k.yaml"


def inputs(data: PreparedData, batches: Iterable[Batch]):
    """Dense features beside one column for each row of a table, and labels."""
    found, labels = [], []
    for batch in batches:
        columns = [scipy.sparse.csr_array(batch.dense)]
        for name, ids in batch.ids.items():
            sample, place = np.nonzero(ids >= 0)
            ones, rows = np.ones(len(sample)), ids[sample, place]
            shape = (len(ids), data.table_rows[name])
            columns.append(scipy.sparse.csr_array((ones, (sample, rows)), shape))
        found.append(scipy.sparse.hstack(columns, format="csr"))
        labels.append(batch.labels)
    return scipy.sparse.vstack(found, format="csr"), np.concatenate(labels)


def linear_auc(data: PreparedData) -> float:
    """Test AUC of logistic regression."""
    train = inputs(data, [data.train_batch(0, data.train_samples)])
    model = LogisticRegression(C=0.3, max_iter=1000).fit(*train)
    samples, labels = inputs(data, data.test_batches(1000))
    return float(roc_auc_score(labels, model.decision_function(samples)))


def test_deep_model_beats_logistic_regression(tmp_path, movielens):
    workdir = tmp_path / "run"
    command = "train", CONFIG, f"data.path={movielens()}", "--workdir", workdir
    assert runs.start(*command).wait() == 0  # with devices of its own
    auc = runs.final(workdir)["test_auc"]
    linear = linear_auc(PreparedData(movielens()))
    assert 0.76 < linear < 0.78  # else it is not a baseline worth beating
    assert auc >= 0.775
    assert auc >= linear + 0.008
