"""The bytes of every collective of the compiled step are those of the cost model.

XLA packs all-reduces that are ready at the same time into one collective with several
operands, and writes an all-to-all as one operand for each device. So a collective of
the cost model is an operand of an all-reduce or an all-gather, or a whole all-to-all;
of these the compiled program must have as many, of the same sizes, and no other.
"""

import optax
import pytest

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner import Workload
from embark_jax.planner.cost.memory import Memory
from embark_jax.plans import fleet
from embark_jax.train.state import Optimizers, abstract_state
from embark_jax.train.step_model import FlaxModel
from tests.compiled import bytes_per_device
from tests.thorough import thorough
from tests.train.accounting import (
    FORMATS,
    OPTIMIZERS,
    Flat,
    compile_and_predict,
    predicted,
    request,
)

QUICK = (11, 86, 145, 150, 348)
"""Small plans that together need every collective, format and optimizer, one of them
with room for the events of a sequence."""
PLANS = (*QUICK, *range(11))
# What becomes of the collectives after they are chosen does not matter here.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def test_the_plans_need_every_collective():
    requests = [request(seed) for seed in QUICK]
    assert {optimizer for _, optimizer, *_ in requests} == set(OPTIMIZERS)
    assert {wire.rows for _, _, wire, _ in requests} == set(FORMATS)
    assert {wire.gradients for _, _, wire, _ in requests} == set(FORMATS)
    assert any(wide for *_, wide in requests)
    found = {
        (part.storage.cluster, part.collective, part.what, part.reach)
        for plan, optimizer, wire, _ in requests
        for part in predicted(plan, optimizer, wire)
    }
    squares = {"squares of column shards", "squares of rows"}
    exchanged = {
        "rb": {"slots, bags", "slots, bags, weights", "partial sums", "bag gradients"},
        "ub": {"slots", "rows", "row gradients"},
    }
    summed = [
        ("all_reduce", "touched rows"),
        ("all_reduce", "row gradients"),
    ]
    assert found == {
        *(("dp", *each, "fleet") for each in summed),
        *(
            (cluster, "all_to_all", each, reach)
            for cluster, values in exchanged.items()
            for each in values | squares
            for reach in ("fleet", "node", "rail")
        ),
    }


# Those with all collectives but one, and a small one; for H100s there are others.
@pytest.mark.parametrize("seed", thorough(PLANS, (86, 150, 348)))
def test_the_compiled_step_moves_what_the_cost_model_says(seed):
    found, expected = compile_and_predict(seed, compiler_options=FAST)
    assert found == expected, (found - expected, expected - found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_cutting_a_batch_moves_nothing(seed):
    """Of one to three samples a device, or 300."""
    plan, *_ = request(seed)
    cuts = min(3, plan.batch_size // plan.devices)
    found, expected = compile_and_predict(
        seed, compiler_options=FAST, micro_batches=cuts
    )
    assert found == expected, (found - expected, expected - found)


@pytest.mark.parametrize("seed", thorough(PLANS, QUICK))
def test_tables_and_states_are_as_large_as_predicted(seed):
    plan, name, *_ = request(seed)
    collection = EmbeddingCollection(plan, plan.make_mesh())
    model = FlaxModel(Flat(collection.output_shapes))
    optimizers = Optimizers(optax.sgd(0.1), OPTIMIZERS[name])
    state = abstract_state(model, collection, optimizers)
    machines = fleet.Fleet(fleet.dgx_h100().device, plan.nodes, plan.gpus_per_node)
    memory = Memory(Workload(machines, plan.batch_size, optimizer=name))
    rows_bytes = sum(
        storage.slots_per_device * memory.row_bytes(storage.width)
        for storage in plan.storages
    )
    held = (state.storages, state.embedding_state)
    assert bytes_per_device(held) == rows_bytes
