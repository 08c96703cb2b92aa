"""Random embedding problems, and their solution by the oracle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import FTRL, Adagrad, RowOptimizer, RowwiseAdagrad
from embark_kernels.optimizers import ROW_OPTIMIZERS
from embark_kernels.packing import pack, unpack
from hypothesis import strategies as st

from embark_jax.embedding.collection import BATCH, EmbeddingCollection, Storages
from embark_jax.embedding.lookups import Lookups
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.capacities import events_of
from embark_jax.plans.clusters import EXCHANGES
from embark_jax.plans.placement import Placement
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.plans.wire import FLOAT32, Wire
from tests.builders import make_plan, tables_of
from tests.embedding import reference

MESHES = [(1, 1), (1, 4), (2, 4), (1, 8), (4, 2), (8, 1), (3, 1)]


def halved(steps):
    """A schedule."""
    return 0.5**steps


# A large eps keeps a wrong gradient scale visible: Adagrad alone would hide it.
TELLING: dict[str, dict[str, float]] = {
    "sgd": {"learning_rate": 0.5},
    "adagrad": {"learning_rate": 1.0, "eps": 1.0},
    "rowwise_adagrad": {"learning_rate": 1.0, "eps": 1.0},
    "adam": {"learning_rate": 0.1, "eps": 1.0},
    "ftrl": {"learning_rate": 0.5, "l1": 0.1, "l2": 0.2},
}
OPTIMIZERS: dict[str, RowOptimizer] = {
    **{
        name: rule(**TELLING.get(name, {"learning_rate": 0.1}))
        for name, rule in ROW_OPTIMIZERS.items()
    },
    "initial accumulator": Adagrad(0.1, initial_accumulator=0.1),
    "decay": RowwiseAdagrad(1.0, 1.0, schedule=halved, weight_decay=0.2),
    "ftrl, decay": FTRL(0.5, l1=0.1, schedule=halved, weight_decay=0.2),
}
STEPS = 2
# float32 against float64: sums of at most a few hundred terms of order 1, so a few
# hundred roundings of 6e-8 each.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A plan, an optimizer, a seed for batches, all small, the wires, and the width of
    what the model puts beside its embeddings."""

    plan: Plan
    optimizer: RowOptimizer
    seed: int
    wire: Wire = FLOAT32
    beside: int = 0


def placements(tables: tuple[TableSpec, ...], features, devices: int):
    """Strategy: any valid placement of each table that the features read."""
    sequences = {feature.table for feature in features if feature.sequence}

    def of_table(table):
        return st.just(Placement(table, "dp")) | sharded(table)

    @st.composite
    def sharded(draw, table):
        hot_rows = draw(st.just(0) | st.integers(0, table.rows - 1))
        rows = draw(st.integers(1, min(table.rows - hot_rows, devices + 1)))
        columns = [m for m in (1, 2, 4) if table.dim // m >= 2]
        column_shards = draw(st.sampled_from(columns))
        count = rows * column_shards
        owner = st.integers(0, devices - 1)
        return Placement(
            table,
            draw(st.sampled_from(["ub"] if table.name in sequences else ["rb", "ub"])),
            rows,
            column_shards,
            tuple(draw(st.lists(owner, min_size=count, max_size=count))),
            draw(st.sampled_from([*EXCHANGES])),
            hot_rows=hot_rows,
        )

    return st.tuples(*map(of_table, tables))


@st.composite
def problems(draw) -> Problem:
    nodes, gpus = draw(st.sampled_from(MESHES))
    tables = tuple(
        TableSpec(
            f"t{i}", draw(st.integers(1, 30)), draw(st.sampled_from([2, 4, 8, 12]))
        )
        for i in range(draw(st.integers(1, 3)))
    )
    extra = draw(st.lists(st.sampled_from(tables), max_size=2))
    features = [
        FeatureSpec(
            f"f{i}",
            table.name,
            draw(st.integers(1, 4)),
            draw(st.sampled_from(["sum", "mean", "none"])),
            draw(st.booleans()),
        )
        for i, table in enumerate((*tables, *extra))
    ]
    placed = draw(placements(tables, features, nodes * gpus))
    batch = nodes * gpus * draw(st.integers(1, 3))
    return Problem(
        make_plan(features, placed, nodes, gpus, batch),
        draw(st.sampled_from(list(OPTIMIZERS.values()))),
        draw(st.integers(0, 2**16)),
    )


def batches(plan: Plan, seed: int):
    """``STEPS`` tuples ``(ids, weights, gradients)``; some bags are empty."""
    rng = np.random.default_rng(seed)
    tables = {table.name: table for table in plan.tables}
    for _ in range(STEPS):
        ids, weights, gradients = {}, {}, {}
        for feature in plan.features:
            shape = (plan.batch_size, feature.hotness)
            table = tables[feature.table]
            drawn = rng.integers(0, table.rows, shape)
            drawn[rng.random(shape) < 0.3] = -1
            drawn[rng.random(plan.batch_size) < 0.1] = -1
            ids[feature.name] = drawn.astype(np.int32)
            if feature.weighted:
                weights[feature.name] = rng.uniform(0.1, 1, shape).astype(np.float32)
            out = shape if feature.sequence else shape[:1]
            gradient = rng.normal(size=(*out, table.dim))
            gradients[feature.name] = gradient.astype(np.float32)
        yield ids, weights, gradients


def with_tight_events(plan: Plan, seed: int) -> Plan:
    """The plan with room for as many events as ``batches`` have."""
    capacities = dict(plan.capacities)
    for feature in plan.features:
        if feature.sequence:
            most = max(
                events(ids[feature.name], plan.devices).max()
                for ids, _, _ in batches(plan, seed)
            )
            capacities[events_of(feature.name)] = max(1, int(most))
    return dataclasses.replace(plan, capacities=capacities)


def events(ids: np.ndarray, devices: int) -> np.ndarray:
    """Events of each device's samples: from the first id of each to the last."""
    lengths = [
        np.ptp(np.flatnonzero(sample >= 0)) + 1 if (sample >= 0).any() else 0
        for sample in ids
    ]
    return np.reshape(lengths, (devices, -1)).sum(axis=1)


def spans_of(present: jax.Array, devices: int) -> Spans:
    """Spans of ``[batch, longest]`` places, of which it is said which are events."""
    begin = jnp.argmax(present, axis=1)
    end = present.shape[1] - jnp.argmax(present[:, ::-1], axis=1)
    length = jnp.where(present.any(axis=1), end - begin, 0)
    return Spans.of(begin.astype(jnp.int32), length.astype(jnp.int32), devices)


def random_storages(collection: EmbeddingCollection, seed: int) -> Storages:
    """Storages of any rows; to compile their initial ones takes longer than a step."""
    plan, rng, storages = collection.plan, np.random.default_rng(seed), {}
    for storage in plan.storages:
        copies = 1 if storage.replicated else plan.devices
        shape = copies * storage.slots_per_device, storage.width
        rows = rng.uniform(-1, 1, shape).astype(storage.kind.dtype)
        sharding = collection.shardings[storage.name]
        storages[storage.name] = jax.device_put(rows, sharding)
    return storages


def begin(plan: Plan, optimizer, seed: int = 0, **options):
    """A collection, its storages and states at the start, and a compiled step
    ``(storages, states, batch of "batches", number) -> (storages, states, lookups,
    routes)``, which changes nothing if the batch does not fit.

    Args:
      options: of the collection.
    """
    collection = EmbeddingCollection(plan, plan.make_mesh(), **options)
    storages = random_storages(collection, seed)
    states = collection.init_optimizer(optimizer)

    @jax.jit
    def step(storages, state, batch, number):
        ids, weights, gradients = batch
        sequences = [f.name for f in collection.plan.features if f.sequence]
        devices = collection.plan.devices
        spans = {name: spans_of(ids[name] != -1, devices) for name in sequences}
        routes = collection.route(
            packed(collection, ids, spans, -1),
            packed(collection, weights, spans),
            spans,
        )
        found = collection.lookup(storages, routes)
        lookups, transposed = jax.vjp(collection.by_feature, found)
        lookups = padded(collection, lookups, spans)
        fits, number = collection.fits(routes), jnp.int32(number)
        (gradients,) = transposed(packed(collection, gradients, spans))
        gradients = with_gradients_beside(gradients, collection.width_beside)
        storages, state, _ = collection.update(
            storages, state, routes, gradients, optimizer, number, fits
        )
        return storages, state, lookups, routes

    return collection, storages, states, step


def padded(collection: EmbeddingCollection, columns, spans):
    """Arrays by feature, whose sequences, ``[total, …]``, are padded."""
    longest = {f.name: f.hotness for f in collection.plan.features}

    def pad(columns, spans):
        return {n: unpack(x, longest[n], *spans[n]) for n, x in columns.items()}

    return _map_sequences(collection, pad, columns, spans)


def packed(collection: EmbeddingCollection, columns, spans, fill: float = 0):
    """Inverts ``padded``; ``fill`` is where there is room for other events."""
    room = collection.plan.events

    def pack_each(columns, spans):
        return {n: pack(x, room[n], *spans[n], fill=fill) for n, x in columns.items()}

    return _map_sequences(collection, pack_each, columns, spans)


def _map_sequences(collection: EmbeddingCollection, function, columns, spans):
    names = [name for name in spans if name in columns]
    if not names:
        return dict(columns)
    sequences = ({n: by_name[n] for n in names} for by_name in (columns, spans))
    return {**columns, **collection.map(function, BATCH, BATCH)(*sequences)}


def with_gradients_beside(gradients: Lookups, width: int) -> Lookups:
    """Gradients by the values that a model puts before embeddings; no row has them."""
    pooled = gradients.pooled.at[:, :width].set(1e6)
    return gradients._replace(pooled=pooled)


def solve(problem: Problem, implementation: str = "xla"):
    """``(lookups of each step, tables, states)`` of the plan, as logical NumPy."""
    plan, optimizer = with_tight_events(problem.plan, problem.seed), problem.optimizer
    options = {"wire": problem.wire, "implementation": implementation}
    options["beside"] = problem.beside
    collection, storages, state, step = begin(plan, optimizer, problem.seed, **options)
    initial = tables_of(collection, storages)
    lookups = []
    for number, batch in enumerate(batches(plan, problem.seed), start=1):
        storages, state, found, routes = step(storages, state, batch, number)
        assert collection.fits(routes)
        lookups.append({name: np.asarray(value) for name, value in found.items()})
    states = {
        name: tables_of(collection, {s: each[name] for s, each in state.items()})
        for name in optimizer.state_widths(1)
    }
    return initial, lookups, tables_of(collection, storages), states


def solve_by_oracle(problem: Problem, initial: dict[str, np.ndarray]):
    """What ``solve`` must give, from the same initial tables."""
    plan, optimizer = problem.plan, problem.optimizer
    tables = {name: value.astype(np.float64) for name, value in initial.items()}
    states = reference.init_state(tables, optimizer)
    lookups = []
    for number, batch in enumerate(batches(plan, problem.seed), start=1):
        ids, weights, gradients = batch
        lookups.append(reference.lookup(tables, plan.features, ids, weights))
        dense, touched = reference.row_gradients(
            tables, plan.features, ids, weights, gradients
        )
        for name, table in tables.items():
            reference.update(
                table, states[name], dense[name], touched[name], optimizer, number
            )
    return lookups, tables, states


def check(problem: Problem, implementation: str = "xla") -> None:
    """Any plan gives what the unsharded reference gives."""
    initial, lookups, tables, states = solve(problem, implementation)
    expected_lookups, expected_tables, expected_states = solve_by_oracle(
        problem, initial
    )
    for found, expected in zip(lookups, expected_lookups, strict=True):
        for name in expected:
            np.testing.assert_allclose(
                found[name], expected[name], **TOLERANCE, err_msg=name
            )
    for table, expected in expected_tables.items():
        np.testing.assert_allclose(tables[table], expected, **TOLERANCE, err_msg=table)
        for state, rows in expected_states[table].items():
            np.testing.assert_allclose(
                states[state][table], rows, **TOLERANCE, err_msg=f"{table} {state}"
            )
