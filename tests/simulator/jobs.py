"""A small model on DGX H100s, for tests of simulated steps."""

import dataclasses

from embark_jax.planner import Workload
from embark_jax.planner.request.dense import dlrm_network
from embark_jax.plans import fleet
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner.toy import RINGS

TABLES = [
    TableSpec("big", rows=1_000_000, dim=16),
    TableSpec("wide", rows=50_000, dim=64),
    TableSpec("tiny", rows=50, dim=16),
]
FEATURES = [
    FeatureSpec("big", hotness=20),
    FeatureSpec("wide", hotness=2),
    FeatureSpec("tiny", hotness=3),
]
# One of each cluster; the big one is on three of eight devices.
PLACEMENTS = [
    Placement(TABLES[0], "rb", 3, 1, (0, 1, 5)),
    Placement(TABLES[1], "ub", 2, 2, (2, 3, 4, 6)),
    Placement(TABLES[2], "dp"),
]
NETWORK = dlrm_network(96, 13, (64, 32), (64, 1), cross_layers=2, cross_rank=16)


def machines(nodes, gpus, **changed):
    real = fleet.dgx_h100()
    device = dataclasses.replace(real.device, **changed)
    return fleet.Fleet(device, nodes, gpus, RINGS)


def workload_on(fleet_, batch=4096):
    return Workload(
        fleet_,
        batch,
        1.1,
        optimizer="rowwise_adagrad",
        dense=NETWORK.load(states=1),
        kernels="mosaic_gpu",
    )
