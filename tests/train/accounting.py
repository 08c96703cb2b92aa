"""Random plans, and the collectives that a step has and should have for them."""

import dataclasses
import math
from collections import Counter

import jax
import numpy as np
import optax
from embark_kernels import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from flax import nnx
from jax.sharding import Mesh

from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.planner import WorkItem, Workload, price
from embark_jax.plans import fleet
from embark_jax.plans.capacities import events_capacity, events_of, rows_of
from embark_jax.plans.clusters import EXCHANGES
from embark_jax.plans.layout import lay_out
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import Wire
from embark_jax.statistics.accesses import FeatureAccess, Statistics
from embark_jax.train.absent import lower_model
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers
from embark_jax.train.step_model import FlaxModel
from tests.builders import dlrm_dcnv2
from tests.collectives import counted
from tests.compiled import DENSE_FEATURES

OPTIMIZERS = {
    "sgd": SGD(0.1),
    "adagrad": Adagrad(0.1),
    "rowwise_adagrad": RowwiseAdagrad(0.1),
    "adam": LazyAdam(0.1),
}
MESHES = [(2, 4), (4, 2), (1, 8), (2, 4), (8, 1)]
FORMATS = ("float32", "bfloat16")


class Flat(nnx.Module):
    """A small DLRM-DCNv2 that takes a sequence as one long embedding."""

    def __init__(self, shapes):
        flat = {name: (math.prod(shape),) for name, shape in shapes.items()}
        self.inner = dlrm_dcnv2(DENSE_FEATURES, (4,), (3, 1), rank=2)(flat)

    def __call__(self, dense, embeddings):
        batch = dense.shape[0]
        flat = {name: rows.reshape(batch, -1) for name, rows in embeddings.items()}
        return self.inner(dense, flat)


def mean_of(feature: FeatureSpec) -> float:
    """Mean length of a sequence."""
    return 0.6 * feature.hotness


def random_plan(rng: np.random.Generator, nodes: int, gpus: int) -> Plan:
    """Of few tables, in any placement, with capacities that no batch was asked for."""
    devices = nodes * gpus
    (hot,) = rng.spawn(1)
    tables, features, placements = [], [], []
    for i in range(rng.integers(2, 4)):
        rows = rng.integers(1, rng.choice([20, 200]))
        table = TableSpec(f"t{i}", int(rows), int(rng.choice([4, 8])))
        for j in range(rng.integers(1, 3)):
            features.append(
                FeatureSpec(
                    f"f{i}_{j}",
                    table.name,
                    int(rng.integers(1, 5)),
                    str(rng.choice(["sum", "mean", "none"])),
                    bool(rng.random() < 0.3),
                )
            )
        cluster = str(rng.choice(["dp", "rb", "ub"]))
        if cluster == "rb":  # which has no sequences
            features = [
                dataclasses.replace(f, pooling="sum")
                if f.sequence and f.table == table.name
                else f
                for f in features
            ]
        split = (1, 1)
        if cluster != "dp":
            row_shards = rng.integers(1, min(table.rows, devices) + 1)
            split = (int(row_shards), int(rng.choice([1, 2])))
        owners = rng.integers(0, devices, math.prod(split)) if cluster != "dp" else ()
        exchange = "flat"
        if cluster != "dp":
            exchange = str(rng.choice([*EXCHANGES]))
        hot_rows = 0
        if cluster != "dp" and hot.random() < 0.5:
            hot_rows = int(hot.integers(0, table.rows - split[0] + 1))
        tables.append(table)
        placements.append(
            Placement(
                table,
                cluster,
                *split,
                tuple(map(int, owners)),
                exchange,
                hot_rows=hot_rows,
            )
        )
    capacities = {
        storage.name: int(rng.integers(1, 20))
        for storage in lay_out(placements, features, devices)
        if not storage.replicated
    }
    batch = devices * int(rng.choice([1, 2, 3, 300]))
    for feature in features:
        if feature.sequence:
            mean = mean_of(feature)
            room = events_capacity(batch // devices, mean, feature.hotness)
            capacities[events_of(feature.name)] = room
    plan = Plan(tuple(features), tuple(placements), nodes, gpus, batch, capacities)
    rooms = price(placements, features, workload_of(plan)).capacities()
    rooms = {rows_of(s.name): rooms[rows_of(s.name)] for s in plan.storages}
    return dataclasses.replace(plan, capacities=rooms | capacities)


def workload_of(plan: Plan, **options) -> Workload:
    machines = fleet.Fleet(fleet.dgx_h100().device, plan.nodes, plan.gpus_per_node)
    accesses = {
        f.name: FeatureAccess(mean_of(f), f.hotness, 0)
        for f in plan.features
        if f.sequence
    }
    statistics = Statistics(features=accesses)
    return Workload(machines, plan.batch_size, statistics=statistics, **options)


def predicted(plan: Plan, optimizer: str, wire: Wire) -> list[WorkItem]:
    """The collectives of the cost model, for what the embeddings move."""
    workload = workload_of(plan, optimizer=optimizer, wire=wire)
    priced = price(plan.placements, plan.features, workload, plan.capacities)
    return [item for item in priced.work_items() if item.buffer]


def request(seed: int) -> tuple[Plan, str, Wire, set[str]]:
    """A plan, the name of an optimizer, the formats of what travels, and the features
    with 64-bit ids."""
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, *MESHES[seed % len(MESHES)])
    wide = {feature.name for feature in plan.features if rng.random() < 0.2}
    wire = Wire(*map(str, rng.choice(FORMATS, 2)))
    return plan, list(OPTIMIZERS)[seed % len(OPTIMIZERS)], wire, wide


def compile_and_predict(
    seed: int,
    mesh: Mesh | None = None,
    compiler_options: dict | None = None,
    micro_batches: int = 1,
) -> tuple[Counter, Counter]:
    """How many of each ``(kind, bytes)`` there are, and should be."""
    plan, name, wire, wide = request(seed)
    mesh = mesh or plan.make_mesh()
    collection = EmbeddingCollection(plan, mesh, wire=wire)
    lowered, state = lower_model(
        collection,
        FlaxModel(Flat(collection.output_shapes)),
        Optimizers(optax.sgd(0.1), OPTIMIZERS[name]),
        DENSE_FEATURES,
        options=StepOptions(micro_batches),
        wide=wide,
    )

    # The gradients of the dense layers are one operand an array, and the check of those
    # of rows is one.
    parameters = [leaf.size for leaf in jax.tree.leaves(state.params)]
    replicated = {rows_of(s.name) for s in plan.storages if s.replicated}
    needed = 4 * (len(set(plan.capacities) - replicated) + 1)
    expected = Counter()
    for part in predicted(plan, name, wire):
        if (part.collective, part.what) == ("all_reduce", "touched rows"):
            needed += round(part.buffer)  # in one buffer with the capacities
        else:
            expected.update([(part.collective, round(part.buffer))])
    expected.update(("all_reduce", 4 * size) for size in parameters)
    expected.update([("all_reduce", 4), ("all_reduce", 4)])
    expected.update([("all_reduce", needed)])
    compiled = lowered.compile(compiler_options)
    return counted(compiled.as_text()), expected
