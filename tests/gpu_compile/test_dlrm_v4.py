"""DLRMv4's train step compiles for H200s, and moves what the cost model says, byte by
byte."""

import jax

from embark_jax.planner import plan_for
from experiments.compile_at_scale.compile import compiled_traffic, planned_traffic
from experiments.compile_at_scale.program import collectives
from experiments.yambda.compile import arrays_of_all_scores, compile_plan, request

EVENTS = 600


def test_ragged_histories_longer_than_a_block():
    """Sequences of 609 events go through as 624: as they are, XLA finds no tiles."""
    workload, tables, features, model = request("dgx-h200", 1, 1, 32, EVENTS)
    plan = plan_for(workload, tables, features)
    small = {"layers": 1, "input_dropout": 0.0, "dropout": 0.0}
    compiled, state = compile_plan(plan, model.model_copy(update=small), workload)
    hlo = compiled.as_text()
    assert hlo is not None
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    traffic = compiled_traffic(collectives(hlo), 8)
    planned = planned_traffic(plan, workload, parameters)
    assert planned == {name: traffic[name] for name in planned}
    assert arrays_of_all_scores(hlo, EVENTS) == 0
