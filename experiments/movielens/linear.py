"""The baseline: scikit-learn's logistic regression on the same samples and features."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from embark_jax.data import Batch, MovieLens100K

STRENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Inverse strengths of the regularization that are tried."""


def fit(data: MovieLens100K) -> dict[str, float]:
    """AUC and log loss; the regularization is the best for the validation samples."""
    train, validation, test = (
        _inputs(data, batches)
        for batches in (
            [data.train_batch(0, data.train_samples)],
            data.validation_batches(1000),
            data.test_batches(1000),
        )
    )
    models = [LogisticRegression(C=c, max_iter=1000).fit(*train) for c in STRENGTHS]
    best = max(models, key=lambda model: _auc(model, *validation))
    record = {}
    for split, (inputs, labels) in (("validation", validation), ("test", test)):
        record[f"{split}_auc"] = _auc(best, inputs, labels)
        probabilities = best.predict_proba(inputs)
        record[f"{split}_log_loss"] = float(log_loss(labels, probabilities))
    return record


def _auc(model: LogisticRegression, inputs, labels: np.ndarray) -> float:
    return float(roc_auc_score(labels, model.decision_function(inputs)))


def _inputs(data: MovieLens100K, batches: Iterable[Batch]):
    """Dense features beside one column for each row of a table, and labels."""
    inputs, labels = [], []
    for batch in batches:
        columns = [scipy.sparse.csr_array(batch.dense)]
        for name, ids in batch.ids.items():
            sample, place = np.nonzero(ids >= 0)
            ones, rows = np.ones(len(sample)), ids[sample, place]
            shape = (len(ids), data.table_rows[name])
            columns.append(scipy.sparse.csr_array((ones, (sample, rows)), shape))
        inputs.append(scipy.sparse.hstack(columns, format="csr"))
        labels.append(batch.labels)
    return scipy.sparse.vstack(inputs, format="csr"), np.concatenate(labels)
