"""DLRMv4's train step compiles for H200s, and moves what the cost model says, byte by
byte."""

import dataclasses
import re
from collections import Counter

import jax
from flax import nnx

import embark_jax as ej
from embark_jax import models, planner
from embark_jax.config import DENSE_RULES, ROW_RULES
from embark_jax.config.models import section_of
from embark_jax.config.table_lists import read_table_list
from embark_jax.planner import Workload, price
from embark_jax.plans import fleet
from embark_jax.plans.wire import Wire
from embark_jax.run.optimizers import build_dense_optimizer, build_embedding_optimizer
from embark_jax.train.absent import absent_mesh, lower_model
from embark_jax.train.state import Optimizers
from embark_jax.train.step_model import step_model
from tests.collectives import collectives
from tests.config_files import CONFIGS
from tests.planner import published

EVENTS, SAMPLES, GPUS, DENSE_FEATURES = 600, 32, 8, 4
TABLES = ("item_id", "album_id", "artist_id")
MODEL = section_of("dlrm_v4")(
    history={f"{name}_0": f"{name}_1" for name in TABLES},
    content="item_id_0",
    width=512,
    hidden=256,
    head_dim=128,
    deep=512,
    layers=1,
    compute_dtype="bfloat16",
    input_dropout=0.0,
    dropout=0.0,
)
ARRAY = re.compile(r"\w\[([\d,]+)\]")


def compiled(plan: ej.Plan, workload: Workload):
    """The compiled step of a plan, and the number of the model's parameters."""
    mesh = absent_mesh(workload.fleet, workload.fleet.device.memory_bytes)
    collection = ej.EmbeddingCollection(
        plan, mesh, wire=workload.wire, implementation="xla"
    )
    shapes = collection.output_shapes
    model = step_model(models.build(MODEL, shapes, DENSE_FEATURES, nnx.Rngs(0)))
    optimizers = Optimizers(
        build_dense_optimizer(DENSE_RULES["adam"](), steps=1),
        build_embedding_optimizer(ROW_RULES["rowwise_adagrad"](), steps=1),
    )
    with jax.numpy_dtype_promotion("standard"):  # which Adam of Optax needs
        lowered, state = lower_model(collection, model, optimizers, DENSE_FEATURES)
    return lowered.compile(), sum(leaf.size for leaf in jax.tree.leaves(state.params))


def planned_bytes(plan: ej.Plan, workload: Workload, parameters: int) -> Counter:
    """Buffers of a device, by kind of collective."""
    found = Counter()
    priced = price(plan.placements, plan.features, workload, plan.capacities)
    for item in priced.work_items():
        if item.collective is not None:
            found[item.collective.replace("_", "-")] += round(item.buffer)
    # Of the whole step: the capacities and whether an id was bad, gradients of the
    # dense layers, the loss, and whether the gradients of rows are finite.
    needed = len(plan.capacities) + 1
    found["all-reduce"] += 4 * (needed + parameters + 1 + 1)
    return found


def test_ragged_histories_move_what_the_cost_model_says():
    """Sequences of 609 events go through as 624: as they are, XLA finds no tiles. No
    array has the length of a sequence in two dims."""
    text = (CONFIGS / "models" / "dlrm_v4.yaml").read_text()
    mean = round(EVENTS * 2663 / 4086)
    text = text.replace("4086", str(EVENTS)).replace("2663", str(mean))
    listed = read_table_list(text)
    tables, features = listed.specs()
    features = [
        feature if feature.hotness > 1 else dataclasses.replace(feature, pooling="sum")
        for feature in features
    ]
    machines = fleet.load("dgx-h200", 1)
    workload = dataclasses.replace(
        published.workload(listed, machines, SAMPLES * GPUS, overlap=True),
        wire=Wire(rows="bfloat16", gradients="bfloat16"),
    )
    plan = planner.plan_for(workload, tables, features)
    program, parameters = compiled(plan, workload)
    hlo = program.as_text()
    moved = Counter()
    for each in collectives(hlo):
        moved[each.kind] += each.buffer_bytes
    assert moved == planned_bytes(plan, workload, parameters)
    lengths = range(EVENTS, EVENTS + 32)
    shapes = ([int(n) for n in dims.split(",")] for dims in ARRAY.findall(hlo))
    assert not [dims for dims in shapes if sum(n in lengths for n in dims) > 1]
