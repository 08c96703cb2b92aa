"""Plans of small models against the best of all plans there are."""

import itertools
from typing import get_args

import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner import (
    EmbarkModel,
    ForcedPlacement,
    Placement,
    ProgramModel,
    Workload,
    plan,
    predict,
)
from embark_jax.planner.search.candidates import shapes
from embark_jax.planner.layout.storage import Exchange
from embark_jax.planner.request.workload import table_use
from embark_jax.tables import FeatureSpec, TableSpec

MODELS = {"program": ProgramModel, "embark": EmbarkModel}
# Nodes, GPUs a node, tables, skew: so few that all plans can be tried.
SIZES = [(1, 2, 3, 1.05), (2, 1, 3, 1.05), (1, 3, 2, 1.05), (2, 2, 2, 0.0)]
GAPS = {
    # Near its bound a plan is not improved.
    ((2, 2, 2, 0.0), 2, "program"): 0.001,
}
"""Where the plan is not the best: how far above it at most, as a share."""


def request(nodes, gpus_per_node, count, zipf_exponent, seed):
    """Tables of all sizes, with many ids or few."""
    random = np.random.default_rng(seed)
    machines = fleet.dgx_h100(nodes, gpus_per_node=gpus_per_node)
    dims = [8, 16] if machines.devices < 4 else [4]  # which is split by rows alone
    tables = [
        TableSpec(
            f"t{i}", 4 * int(10 ** random.uniform(1, 7)), int(random.choice(dims))
        )
        for i in range(count)
    ]
    features = [
        FeatureSpec(table.name, hotness=int(10 ** random.uniform(0, 2)))
        for table in tables
    ]
    return tables, features, Workload(machines, 6 * 1024, zipf_exponent)


def all_placements(table, features, workload, clusters, exchange):
    """Every candidate shape with every choice of owners."""
    use = table_use(table, features, workload)
    devices = range(workload.devices)
    for shape in shapes(use, ForcedPlacement(), len(devices), clusters, exchange):
        shards = 0 if shape.cluster == "dp" else shape.shards
        if workload.zipf_exponent:
            choices = itertools.product(devices, repeat=shards)
        else:  # shards are alike: only how many a device has matters
            choices = itertools.combinations_with_replacement(devices, shards)
        for owners in choices:
            split = shape.row_shards, shape.column_shards
            yield Placement(table, shape.cluster, *split, owners, shape.exchange)


def optimum_ms(tables, features, workload, model, exchange):
    choices = [
        list(all_placements(table, features, workload, model.clusters, exchange))
        for table in tables
    ]
    # Devices are alike, so that the first shard may as well lie on the first.
    choices[0] = [p for p in choices[0] if p.devices[:1] in ((), (0,))]
    return min(
        predict(placements, features, workload, model).step_ms
        for placements in itertools.product(*choices)
    )


@pytest.mark.parametrize("cost_model", MODELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_below_the_best_plan_which_is_ours(size, seed, cost_model):
    tables, features, workload = request(*size, seed)
    model = MODELS[cost_model](workload)
    best_ms = min(
        optimum_ms(tables, features, workload, model, exchange)
        for exchange in get_args(Exchange)
    )
    planned = plan(
        tables,
        features,
        workload.fleet,
        workload.batch_size,
        zipf_exponent=workload.zipf_exponent,
        cost_model=cost_model,
    )
    found = planned.prediction
    assert found is not None
    assert found.lower_bound_ms <= best_ms * (1 + 1e-9)
    again = predict(planned.placements, features, workload, model)
    assert found.step_ms == pytest.approx(again.step_ms, rel=1e-9)
    # All plans here have row shards with equal loads.
    levelled = any(placement.row_loads for placement in planned.placements)
    assert levelled or found.step_ms >= best_ms * (1 - 1e-9)
    gap = GAPS.get((size, seed, cost_model), 1e-9)
    assert found.step_ms <= best_ms * (1 + gap)
