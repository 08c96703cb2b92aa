"""Dense layers that are split inside nodes: what is simulated beside what is compiled.

The compiled step of a small model on 2 × 4 CPU devices has collectives of one node's
devices and of devices of equal rank; the simulated step must send as many bytes.
"""

import dataclasses

import jax
import optax
import pytest
from embark_kernels import SGD
from flax import nnx

import embark_jax as ej
from embark_jax import simulator
from embark_jax.planner import Workload
from embark_jax.planner.request.dense import dlrm_network
from embark_jax.train.device_batch import abstract_batch, abstract_routes
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import FlaxModel
from tests.collectives import collectives
from tests.compiled import bytes_per_device
from tests.simulator.jobs import machines
from tests.thorough import thorough

NODES, GPUS, BATCH, DENSE = 2, 4, 256, 12
TABLES = (ej.TableSpec("a", 40, 16), ej.TableSpec("b", 9, 16))
FEATURES = (ej.FeatureSpec("a"), ej.FeatureSpec("b"))
BOTTOM, TOP = (32, 24, 16), (64, 32, 24, 8, 1)
"""Both have a last product that stays whole."""
CROSS_LAYERS, CROSS_RANK = 2, 24

NETWORKS = {
    "crossed": dlrm_network(32, DENSE, BOTTOM, TOP, CROSS_LAYERS, CROSS_RANK),
    "dot": dlrm_network(32, DENSE, BOTTOM, TOP, dotted=2),
}


def model_of(kind, shapes):
    layers = {"bottom": BOTTOM, "top": TOP, "rngs": nnx.Rngs(0)}
    if kind == "dot":
        return ej.models.DLRM(shapes, DENSE, **layers)
    return ej.models.DLRMDCNv2(
        shapes,
        DENSE,
        **layers,
        cross_layers=CROSS_LAYERS,
        cross_rank=CROSS_RANK,
    )


def compiled(kind, plan):
    """The collectives of the train step, and the bytes of what the simulator leaves
    out of the sums over nodes: biases on a device, and the loss."""
    collection = ej.EmbeddingCollection(plan, plan.make_mesh())
    model = FlaxModel(model_of(kind, collection.output_shapes))
    settings = model, collection, Optimizers(optax.sgd(0.1), SGD(0.1))
    state = abstract_state(*settings, "tensor")
    step = make_train_step(*settings, state, StepOptions(dense="tensor"))
    batch = abstract_batch(plan, collection.mesh, DENSE)
    hlo = (
        step.lower(state, batch, abstract_routes(collection, batch), batch)
        .compile()
        .as_text()
    )
    biases = [leaf for leaf in jax.tree.leaves(state.params) if leaf.ndim == 1]
    return collectives(hlo), bytes_per_device(biases) + 4


@pytest.mark.parametrize("kind", thorough(tuple(NETWORKS), ("crossed",)))
def test_the_compiled_step_sends_what_is_simulated(kind):
    fleet = machines(NODES, GPUS)
    efficiency = dataclasses.replace(
        fleet.efficiency,
        link=1.0,
        launch_us=0,
        node_hop_us=0,
        network_hop_us=0,
    )
    fleet = dataclasses.replace(fleet, efficiency=efficiency)
    forced = {table.name: ej.ForcedPlacement("dp") for table in TABLES}
    plan = ej.plan(TABLES, FEATURES, fleet, BATCH, forced=forced)
    network = NETWORKS[kind]
    dense = network.load(0, "tensor", "float32")
    workload = Workload(fleet, BATCH, optimizer="sgd", dense=dense)
    step = simulator.simulate_program(plan.placements, FEATURES, workload)
    spans = step.timeline.spans

    made, others_bytes = compiled(kind, plan)
    made = [each for each in made if "pred" not in each.types]
    of_node = [each for each in made if each.group == (0, 1, 2, 3)]
    of_rail = [each for each in made if each.group == (0, 4)]
    everywhere = [each for each in made if len(each.group) == 8]
    assert len(of_node) + len(of_rail) + len(everywhere) == len(made)

    device = fleet.device
    for phases, rate, sent in (
        (
            {"dense sums", "gather of inputs"},
            device.node_link_bytes_per_s,
            sum(each.node_bytes(GPUS)[0] for each in of_node),
        ),
        (
            {"dense sums over nodes"},
            device.network_bytes_per_s,
            sum(each.buffer_bytes for each in of_rail) - others_bytes,
        ),
    ):
        ms = sum(span.task.ms.max() for span in spans if span.task.phase in phases)
        assert ms * rate / 1e3 == pytest.approx(sent)
    # Rows of both tables, the flag of their gradients, flags of touched rows and of
    # the only storage.
    assert sum(each.buffer_bytes for each in everywhere) >= 49 * 16 * 4


def test_a_product_without_a_second_one_stays_whole():
    split, _, top = NETWORKS["crossed"].on_device(GPUS)
    assert [made.product[:2] for made in split] == [(12, 8), (8, 24), (24, 16)]
    assert [made.forward_sum for made in split] == [0, 24, 0]
    assert [made.backward_sum for made in split] == [0, 0, 0]  # of data there is none
    assert [made.backward_sum for made in top] == [48, 0, 32, 0, 0]
    for whole in NETWORKS["crossed"].on_device(5)[::2]:
        assert not any(made.forward_sum for made in whole)  # 5 divides no width
