"""Turns a table list into an experiment: its model, trained on power-law clicks."""

from __future__ import annotations

from typing import Any

from embark_jax.planner.request.table_list import (
    DenseNet,
    TableList,
    dense_optimizer_of,
)
from embark_jax.plans.tables import TableSpec

DEFAULT_BATCH = 65_536
"""Samples of a step of a list that does not say how many."""


def experiment_of(listed: TableList) -> dict[str, Any]:
    """Returns the mapping that an experiment config with this model would be.

    The data are synthetic: 65,536 samples a step and uniform ids, if the list does not
    say otherwise. Bags are averaged, not summed: a sum of 200 rows of a small table is
    too large to train from; lookups and exchanges stay the same. Columns of pooled rows
    are not averaged: ``pool_stride`` is for plans and the simulator only.
    """
    tables, features = listed.specs()
    data: dict[str, Any] = {"kind": "synthetic"}
    data["zipf_exponent"] = listed.zipf_exponent or 0.0
    if listed.dense is not None:
        data["dense_features"] = listed.dense.features
    optimizer = listed.optimizer or "rowwise_adagrad"
    experiment = {
        "data": data,
        "embedding": {
            "tables": {table.name: _table(table) for table in tables},
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
        "train": {"batch_size": listed.batch or DEFAULT_BATCH},
    }
    return experiment | ({"model": _model(listed.dense)} if listed.dense else {})


def _table(table: TableSpec) -> dict[str, Any]:
    if not table.is_dynamic:
        return {"rows": table.rows, "dim": table.dim}
    return {
        "rows": table.expected_keys,
        "dim": table.dim,
        "slots": table.slots,
        "max_slots": table.max_slots,
        "evicted": "discard" if table.discard else table.tier,
        "expected_keys": table.expected_keys,
    }


def _model(dense: DenseNet) -> dict[str, Any]:
    stacks: dict[str, Any] = {"compute_dtype": "bfloat16"}
    stacks |= {"bottom": list(dense.bottom), "top": list(dense.top)}
    if dense.kind == "dlrm":
        return {"kind": dense.kind, **stacks}
    cross = {"cross_layers": dense.cross_layers}
    if dense.cross_layers:
        cross["cross_rank"] = dense.cross_rank
    return {"kind": dense.kind, **stacks, **cross}
