"""Steps that are compiled from shapes alone."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import embark_jax as ej
from embark_jax.cache import key_index
from embark_jax.cache.key_index import Moves
from embark_jax.cache.resolving import init_indexes, resolve_routes
from embark_jax.cache.swaps import Incoming, make_gather, make_scatter, row_words
from embark_jax.embedding.collection import BATCH
from embark_jax.planner import plan
from embark_jax.plans import fleet
from embark_jax.train.absent import absent_mesh, lower_model, wide_features
from embark_jax.train.device_batch import (
    abstract_batch,
)
from embark_jax.train.gradients import StepOptions
from embark_jax.train.state import Optimizers, abstract_state
from embark_jax.train.step import make_train_step
from embark_jax.train.step_model import FlaxModel
from tests.builders import dlrm_dcnv2

DENSE_FEATURES = 13
ALIAS = re.compile(r"\{(\d+)\}: \((\d+), \{\}")
"""An output of a compiled program that has the memory of an argument, by number."""


def h100_mesh(nodes: int, gpus_per_node: int = 8) -> Mesh:
    """A mesh of H100s that are not there."""
    return absent_mesh(fleet.dgx_h100(nodes, gpus_per_node))


def compile_step(
    plan: ej.Plan,
    mesh: Mesh,
    optimizer: ej.RowOptimizer,
    *,
    bottom,
    top,
    rank: int,
    micro_batches: int = 1,
    implementation: str = "xla",
    dense: str = "replicated",
    dense_wire: str = "float32",
    compiler_options: dict | None = None,
):
    """The compiled train step of DLRM-DCNv2, from shapes alone."""
    collection = ej.EmbeddingCollection(plan, mesh, implementation=implementation)
    model = dlrm_dcnv2(DENSE_FEATURES, bottom, top, rank, layers=3)
    lowered, state = lower_model(
        collection,
        FlaxModel(model(collection.output_shapes)),
        Optimizers(optax.adagrad(0.01), optimizer),
        DENSE_FEATURES,
        options=StepOptions(micro_batches, dense, dense_wire=dense_wire),
    )
    return lowered.compile(compiler_options), state


def compile_cached(plan: ej.Plan, mesh: Mesh, optimizer, *, bottom, top, rank):
    """The programs of a step with cached tables: that of routes and the step itself,
    from shapes alone."""
    collection = ej.EmbeddingCollection(plan, mesh, implementation="xla")
    model = dlrm_dcnv2(DENSE_FEATURES, bottom, top, rank, layers=3)
    model = FlaxModel(model(collection.output_shapes))
    optimizers = Optimizers(optax.adagrad(0.01), optimizer)
    state = abstract_state(model, collection, optimizers)
    step = make_train_step(model, collection, optimizers, state)
    batch = abstract_batch(plan, mesh, DENSE_FEATURES, wide_features(plan))

    def sharded(spec, arrays):
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arrays
        )

    def resolve(indexes, batch):
        return resolve_routes(collection, indexes, collection.route_batch(batch))

    indexes = sharded(BATCH, jax.eval_shape(lambda: init_indexes(collection)))
    _, routes, _ = jax.eval_shape(resolve, indexes, batch)
    routes = jax.tree.map(sharded, collection.route_specs, routes)
    resolving = jax.jit(resolve, donate_argnums=0).lower(indexes, batch)
    return resolving.compile(), step.lower(state, batch, routes, None).compile()


def bytes_per_device(arrays) -> int:
    """Of a pytree of sharded arrays or their shapes, on one device."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(arrays)
    )


def check_swap(mesh: Mesh, width: int, slots: int) -> None:
    """Compiles what moves rows of a cached table, from shapes alone: results must be in
    the arguments' memory, and temporaries must follow the rows that move."""
    optimizer, devices, asked, moved = ej.RowwiseAdagrad(0.1), mesh.size, 4096, 2048
    table = ej.TableSpec("t", 10 * slots, width, tier="host", slots=slots)
    force = ej.ForcedPlacement("ub", row_shards=devices)
    features, machines = [ej.FeatureSpec("t")], ej.fleets.dgx_h100(*mesh.devices.shape)
    planned = plan([table], features, machines, devices * 1024, forced={"t": force})
    collection = ej.EmbeddingCollection(planned, mesh)
    (name,) = collection.cached

    def array(rows, *others, dtype=np.float32, spec=BATCH):
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct((rows, *others), dtype, sharding=sharding)

    values = max(
        part.stop for part in row_words(optimizer, collection.cached[name]).values()
    )
    keys = array(devices * asked, 2, dtype=np.uint32)
    slot, count = array(devices * asked, dtype=np.int32), array(devices, dtype=np.int32)
    leaves = array(devices * asked, dtype=np.bool_)
    moves = {name: Moves(slot, keys, keys, count, leaves)}
    rows = array(devices * moved, values)
    fresh = array(devices * moved, dtype=np.bool_)
    incoming = {name: Incoming(rows, fresh)}
    arrays = {name: {"": array(slots, width), "accumulator": array(slots, 1)}}
    key = jax.eval_shape(lambda: jax.random.key(0))
    everywhere = NamedSharding(mesh, PartitionSpec())
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere)
    take = make_gather(collection, optimizer)
    put = make_scatter(collection, optimizer)
    taken = take.lower(arrays, moves, incoming).compile().memory_analysis()
    new = put.lower(arrays, key, moves, incoming).compile().memory_analysis()
    assert new.alias_size_in_bytes >= slots // devices * values * 4
    assert (
        max(taken.temp_size_in_bytes, new.temp_size_in_bytes)
        < 8 * moved * (values * 4)
        < slots // devices * values * 4 / 4
    )


def check_index_in_place(device: jax.Device, slots: int = 2**20, asked: int = 4096):
    """Compiles what a batch does to a key index, from shapes alone: each array of the
    index must be in its argument's memory, and none may be copied."""
    shapes = jax.eval_shape(
        lambda: (
            key_index.empty_index(slots),
            jnp.zeros((asked, 2), jnp.uint32),
            jnp.ones(asked, bool),
        )
    )
    sharding = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
    )
    program = jax.jit(key_index.resolve, donate_argnums=0).lower(*shapes).compile()
    header, *lines = program.as_text().splitlines()
    arrays = range(len(jax.tree.leaves(shapes[0])))
    aliases = header.partition("input_output_alias={")[2].partition("entry_comp")[0]
    found = {int(out): int(into) for out, into in ALIAS.findall(aliases)}
    assert found == {number: number for number in arrays}, header
    whole = rf"= \w+\[({slots}|{2 * slots // 8}),?[^=]* copy\("
    assert not [line for line in lines if re.search(whole, line)]
