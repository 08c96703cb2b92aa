"""A fleet of round figures, and a table on it, for costs that are worked by hand."""

from embark_jax.planner.cost.candidates import (
    CLUSTER_NAMES,
    EXCHANGE_NAMES,
    Candidates,
    Cut,
)
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.request.workload import TableUse, Workload
from embark_jax.plans import fleet
from embark_jax.plans.tables import TableSpec

# 1e9 bytes/s of memory and links: a million bytes last a millisecond.
DEVICE = fleet.DeviceSpec("toy", 1e9, 1e9, 1e9, 2e9, 1e9)
IDEAL = fleet.Efficiency(1.0, 1.0, 1.0, 10.0, node_hop_us=1.0, network_hop_us=5.0)
TOY = fleet.Fleet(DEVICE, nodes=2, gpus_per_node=4, efficiency=IDEAL)
WORKLOAD = Workload(TOY, batch_size=80, optimizer="sgd", kernels="mosaic_gpu")
RINGS = fleet.Efficiency(0.76, 0.8, 0.5, 8.4, 3.4, 14.0, 0.5, 3.4)
"""A GPU's proportions, whatever is fitted to measurements; sums are rings."""


def h100(nodes: int = 1) -> fleet.Fleet:
    """Returns DGX H100 with these proportions."""
    return fleet.Fleet(fleet.dgx_h100().device, nodes, 8, RINGS)


MODEL = ProgramModel(WORKLOAD)
USE = TableUse(TableSpec("t", 1000, 8), rows=1000, hotness=3)


def one(use, workload, cluster, rows=1, columns=1) -> Candidates:
    """A single candidate."""
    exchange = EXCHANGE_NAMES.index("flat")
    layout = 0, CLUSTER_NAMES.index(cluster), exchange, rows, columns
    return Candidates([Cut(0, use)], [layout], workload)
