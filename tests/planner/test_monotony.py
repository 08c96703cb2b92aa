"""Better machines never make the predicted time of the plan worse."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.planner import Workload, plan, plan_for
from embark_jax.planner.cost.memory import Memory
from embark_jax.planner.search.params import MEMORY_SHARES
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner import published

BETTER = (
    "memory_bytes",
    "memory_bytes_per_s",
    "node_link_bytes_per_s",
    "network_bytes_per_s",
)
BATCH = 1200


pytestmark = pytest.mark.whole_search


@st.composite
def requests(draw):
    """Tables, features, a fleet that holds them with little to spare, and a skew."""
    tables = [
        TableSpec(f"t{i}", draw(st.integers(1, 10**6)), draw(st.sampled_from([4, 16])))
        for i in range(draw(st.integers(1, 5)))
    ]
    features = [FeatureSpec(t.name, hotness=draw(st.integers(1, 20))) for t in tables]
    machines = fleet.dgx_h100(
        draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    )
    # Tables and buffers take up to a few hundred MB; less memory than that matters.
    memory_bytes = draw(st.sampled_from([1e8, 3e8, 80e9]))
    device = dataclasses.replace(machines.device, memory_bytes=memory_bytes)
    machines = dataclasses.replace(machines, device=device)
    return tables, features, machines, draw(st.sampled_from([0.0, 1.1]))


def predicted_ms(request, machines):
    tables, features, _, zipf = request
    planned = plan(tables, features, machines, BATCH, zipf_exponent=zipf)
    return planned.prediction.step_ms


@hypothesis.given(requests(), st.sampled_from(BETTER), st.sampled_from([1.1, 10.0]))
@hypothesis.settings(max_examples=6)
def test_more_of_anything_is_never_predicted_slower(request_, figure, factor):
    machines = request_[2]
    improved = getattr(machines.device, figure) * factor
    device = dataclasses.replace(machines.device, **{figure: improved})
    better = dataclasses.replace(machines, device=device)
    try:
        before = predicted_ms(request_, machines)
    except ValueError:  # they do not fit: nothing to compare with
        hypothesis.reject()
    assert predicted_ms(request_, better) <= before * (1 + 1e-9)


def random_list(seed, number=5):
    """Tables on four GPUs whose memory is short at the smaller limits."""
    rng = np.random.default_rng(seed)
    tables = [
        TableSpec(f"t{i}", int(10 ** rng.uniform(1, 6)), int(rng.choice([16, 32])))
        for i in range(number)
    ]
    features = [FeatureSpec(t.name, hotness=int(rng.integers(1, 40))) for t in tables]
    machines = fleet.dgx_h100(2, 2)
    rows_bytes = 5 * sum(table.rows * table.dim for table in tables)
    device = dataclasses.replace(machines.device, memory_bytes=rows_bytes + 1e7)
    machines = dataclasses.replace(machines, device=device)
    return tables, features, Workload(machines, 1024, 1.1)


def published_list(name, nodes):
    listed = published.table_list(name)
    return *listed.specs(), published.workload(listed, fleet.dgx_h100(nodes))


@pytest.mark.parametrize(
    ("tables", "features", "workload"),
    [
        pytest.param(*random_list(0), id="5-0"),
        *(
            pytest.param(*made, id=f"{number}-{s}", marks=pytest.mark.slow)
            for number, s in ((5, 1), (12, 2), (12, 3), (40, 4))
            for made in [random_list(s, number)]
        ),
        *(
            pytest.param(*published_list(*each), id=str(each), marks=pytest.mark.slow)
            for each in (("DLRM-DCNv2", 1), ("DLRM-DCNv2", 4), ("T7", 8), ("T180", 4))
        ),
    ],
)
def test_more_memory_never_makes_a_plan_slower(tables, features, workload):
    device_gb = Memory(workload).limit_bytes / 1e9
    steps = []
    for share in (*sorted(MEMORY_SHARES), 1.0):
        limited = dataclasses.replace(workload, memory_gb=share * device_gb)
        try:
            made = plan_for(limited, tables, features).prediction
        except ValueError:
            assert not steps  # what fits into less fits into more
            continue
        assert max(made.device_bytes) <= share * device_gb * 1e9
        steps.append(made.step_ms)
    assert steps
    assert steps == sorted(steps, reverse=True)
