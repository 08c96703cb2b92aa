"""Published throughput, within a quarter; experiments/embark_table1 has the rest."""

import pytest

from embark_jax.plans import fleet
from embark_jax.simulator import job_of_list
from experiments.embark_table1.system import CHOICES, plan_embark, simulate_embark
from tests.planner import published
from tests.thorough import thorough

# EMBark's Table 1, samples/s on 128 H100, at batch 65,536.
ACHIEVED = {"T200": 15e6, "T7": 74e6}


@pytest.mark.parametrize("name", thorough(ACHIEVED, ["T7"]))
def test_throughput_on_128_gpus(name):
    job = job_of_list(
        published.table_list(name), fleet.dgx_h100(16), kernels="mosaic_gpu"
    )
    found = [
        simulate_embark("", job, plan_embark(job, clusters)).samples_per_s
        for clusters in CHOICES["+ clusters"]
    ]
    assert max(found) == pytest.approx(ACHIEVED[name], rel=0.25)
