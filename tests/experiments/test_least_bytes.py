"""The least that a step must move, worked by hand."""

import pytest

from embark_jax.planner import Workload, plan_for
from embark_jax.planner.request.dense import DenseNetwork
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from experiments.step_bytes.least_bytes import least_bytes

DEVICE = fleet.DeviceSpec("toy", 1e9, 1e9, 1e9, 2e9, 1e9)
NETWORK = DenseNetwork(bottom=(), cross=(), top=((8, 1),), width=8)


@pytest.mark.parametrize(("dtype", "value_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_rows_are_in_their_tables_type(dtype, value_bytes):
    workload = Workload(fleet.Fleet(DEVICE, nodes=1, gpus_per_node=1), batch_size=10)
    table = TableSpec("table", rows=1000, dim=8, dtype=dtype)
    feature = FeatureSpec("feature", "table", hotness=3)
    plan = plan_for(workload, [table], [feature])
    terms = least_bytes(plan, workload, NETWORK, 0, 4)
    ids = 10 * 3
    assert terms["lookup", "rows"] == ids * 8 * value_bytes
    # Sums and their gradients are float32, as is the accumulator of each row.
    assert terms["lookup", "pooled rows"] == 10 * 8 * 4
    assert terms["row_gradients", "bag gradients"] == ids * 8 * 4
    touched = 1000 * (1 - (1 - 1 / 1000) ** ids)
    row_and_state = 8 * value_bytes + 4
    expected = 2 * touched * row_and_state
    assert terms["update", "rows and states"] == pytest.approx(expected)
