"""What travels how in steps that are compiled for H100s."""

import pytest
from embark_kernels import RowwiseAdagrad

from embark_jax import fleet
from embark_jax.planner import ForcedPlacement, Plan, plan
from embark_jax.tables import FeatureSpec, TableSpec
from tests.gpu_compile.test_accounting import total_bytes
from tests.gpu_compile.test_train_step import h100_mesh, pytestmark  # noqa: F401
from tests.train.models import compile_step
from tests.train.test_accounting import compiled_collectives

TABLES = (
    TableSpec("large", 3_000_000, 128),
    TableSpec("small", 1_000_000, 128),
    TableSpec("tiny", 100, 128),
)
FEATURES = (
    FeatureSpec("large", hotness=3),
    FeatureSpec("small", hotness=2),
    FeatureSpec("tiny", hotness=2),
)


def planned(nodes: int, large: ForcedPlacement, small: ForcedPlacement) -> Plan:
    forced = {"large": large, "small": small, "tiny": ForcedPlacement("dp")}
    machines = fleet.dgx_h100(nodes)
    return plan(TABLES, FEATURES, machines, 1024 * machines.devices, forced=forced)


def compiled(asked: Plan, ragged: bool = False):
    mesh = h100_mesh(asked.nodes, asked.gpus_per_node)
    layers = {"bottom": (512, 256, 128), "top": (1024, 512, 1), "rank": 64}
    optimizer = RowwiseAdagrad(0.1)
    return compile_step(asked, mesh, optimizer, **layers, ragged=ragged)[0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_ragged_exchange(nodes):
    """In as many buffers of the same size as padded, and one of their sizes."""
    devices = 8 * nodes
    everywhere = ForcedPlacement("ub", devices)
    asked = planned(nodes, everywhere, everywhere)
    padded, ragged = compiled(asked), compiled(asked, ragged=True)
    of_padded, of_ragged = (
        compiled_collectives(each.as_text()) for each in (padded, ragged)
    )
    exchanged = {
        size: count for (kind, size), count in of_padded.items() if kind == "all_to_all"
    }
    assert sum(exchanged.values()) == 3  # ids, rows and their gradients
    expected = {("ragged_all_to_all", size): n for size, n in exchanged.items()}
    expected["all_to_all", 4 * devices] = 1
    found = {key: n for key, n in of_ragged.items() if "all_to_all" in key[0]}
    assert found == expected
    assert total_bytes(of_ragged)["all_reduce"] == total_bytes(of_padded)["all_reduce"]
    temporaries = [
        each.memory_analysis().temp_size_in_bytes for each in (padded, ragged)
    ]
    assert temporaries[1] <= temporaries[0]
