"""Accuracy on real data, by the shipped config: above a linear model, on any mesh."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from embark_jax.data import Batch, MovieLens100K
from embark_jax.plans.plan import Plan
from tests import runs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "movielens_100k.yaml"


def inputs(data: MovieLens100K, batches: Iterable[Batch]):
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


def linear_auc(data: MovieLens100K) -> float:
    """Test AUC of logistic regression."""
    train = inputs(data, [data.train_batch(0, data.train_samples)])
    model = LogisticRegression(C=0.3, max_iter=1000).fit(*train)
    samples, labels = inputs(data, data.test_batches(1000))
    return float(roc_auc_score(labels, model.decision_function(samples)))


def trained(workdir, folder, *overrides):
    """Plan and test AUC of a run of the config, in a process of its own."""
    process = runs.start(
        "train",
        CONFIG,
        f"data.path={folder}",
        *overrides,
        "--workdir",
        workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = process.communicate()
    assert process.returncode == 0, output
    plan = Plan.from_json((workdir / "plan.json").read_text())
    return plan, runs.final(workdir)["test_auc"]


@pytest.fixture(scope="module")
def auc(movielens_folder, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run") / "1x1", movielens_folder)[1]


def test_deep_model_beats_logistic_regression(auc, movielens_folder):
    linear = linear_auc(MovieLens100K(movielens_folder))
    assert 0.76 < linear < 0.78  # else it is not a baseline worth beating
    assert auc >= 0.775
    assert auc >= linear + 0.008
