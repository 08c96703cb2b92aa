"""Published throughput, within a quarter; experiments/embark_table1 has the rest."""

import pytest

from embark_jax.plans import fleet
from embark_jax.simulator import job_of_list
from experiments.embark_table1.system import simulate_ablation
from tests.planner import published
from tests.thorough import thorough

DOUBTFUL_BATCH = pytest.mark.xfail(
    strict=True,
    reason="65,536 samples are not the batch of 75 M/s: 0.87 ms a step, less than half "
    "of MLPerf's on as many GPUs; at MLPerf's batch it is within a quarter",
)
# EMBark's Table 1, samples/s on 128 H100, at batch 65,536 where nothing else is said.
ACHIEVED = [
    ("DLRM-DCNv2", 135_168, 75e6),
    ("T180", None, 11e6),
    ("T200", None, 15e6),
    ("T510", None, 8e6),
    ("T7", None, 74e6),
]
CASES = [
    pytest.param("DLRM-DCNv2", None, 75e6, marks=[DOUBTFUL_BATCH, pytest.mark.slow]),
    *thorough(ACHIEVED, quick=[("T7", None, 74e6)], unpack=True),
]


@pytest.mark.parametrize(("name", "batch", "samples_per_s"), CASES)
def test_throughput_on_128_gpus(name, batch, samples_per_s):
    machines = fleet.dgx_h100(16)
    listed = published.table_list(name)
    job = job_of_list(listed, machines, batch, kernels="mosaic_gpu")
    *_, final = simulate_ablation(job)
    assert final.samples_per_s == pytest.approx(samples_per_s, rel=0.25)
