"""Turns a table list into an experiment: its model, trained on power-law clicks."""

from __future__ import annotations

from typing import Any

from embark_jax.planner.request.table_list import (
    DenseNet,
    TableList,
    dense_optimizer_of,
)


def experiment_of(listed: TableList) -> dict[str, Any]:
    """Returns the mapping that an experiment config with this model would be.

    The data are synthetic. Bags are averaged, not summed: a sum of 200 rows of a small
    table is too large to train from; lookups and exchanges stay the same. Columns of
    pooled rows are not averaged: ``pool_stride`` is for the simulator only.
    """
    tables, features = listed.specs()
    data = {"kind": "synthetic", "zipf_exponent": listed.zipf_exponent}
    if listed.dense is not None:
        data["dense_features"] = listed.dense.features
    optimizer = listed.optimizer or "rowwise_adagrad"
    experiment = {
        "data": _without_none(data),
        "embedding": {
            "tables": {t.name: {"rows": t.rows, "dim": t.dim} for t in tables},
            "features": {
                f.name: {
                    "table": f.table,
                    "hotness": f.hotness,
                    "pooling": "none" if f.pooling == "none" else "mean",
                }
                for f in features
            },
            "optimizer": {"kind": optimizer},
        },
        "dense_optimizer": {"kind": dense_optimizer_of(optimizer)},
        "train": _without_none({"batch_size": listed.batch}),
    }
    return experiment | ({"model": _model(listed.dense)} if listed.dense else {})


def _model(dense: DenseNet) -> dict[str, Any]:
    stacks = {"bottom": list(dense.bottom), "top": list(dense.top)}
    if dense.interaction == "dot":
        return {"kind": "dlrm", **stacks}
    cross = {"cross_layers": dense.cross_layers}
    if dense.cross_layers:
        cross["cross_rank"] = dense.cross_rank
    return {"kind": "dlrm_dcnv2", **stacks, **cross}


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}
