"""Better machines never make the predicted time of the plan worse."""

import dataclasses

import hypothesis
from hypothesis import strategies as st

from embark_jax.planner import plan
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec

BETTER = (
    "memory_bytes",
    "memory_bytes_per_s",
    "node_link_bytes_per_s",
    "network_bytes_per_s",
)
BATCH = 1200


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
@hypothesis.settings(max_examples=10)
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
