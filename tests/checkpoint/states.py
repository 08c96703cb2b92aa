"""States of trainers to be saved: of runs, and of random tables under any plan."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from embark_jax.config import reading
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.run import experiment
from embark_jax.train.state import TrainState
from tests import runs

BAD_IDS = {"user": 3, "items": 0, "city": 0}


def build(folder, *overrides):
    """A run and its trainer."""
    path = runs.write_config(folder)
    setup = experiment.build(reading.load(path, overrides))
    return setup, setup.trainer()


WIDE, NARROW = "momentum", "accumulator"
"""Optimizer states as wide as a row, and with one value a row."""


def logical_tables(tables, seed):
    """Random rows of each table and of its optimizer states."""
    rng = np.random.default_rng(seed)
    return {
        (table.name, kind): rng.normal(
            size=(table.rows, 1 if kind == NARROW else table.dim)
        ).astype(np.float32)
        for table in tables
        for kind in ("", WIDE, NARROW)
    }


def lay_out(plan, storage, kind, logical):
    """The array of a storage, or of a state of it, as the plan says; row by row."""
    copies = 1 if storage.replicated else plan.devices
    width = 1 if kind == NARROW else storage.width
    array = np.zeros((copies, storage.slots_per_device, width), np.float32)
    for shard in storage.shards:
        rows = shard["first_row"] + shard["stride"] * np.arange(shard["rows"])
        first = 0 if kind == NARROW else shard["first_column"]
        mine = logical[storage.tables[shard["table"]].name, kind][rows]
        slots = slice(shard["first_slot"], shard["first_slot"] + shard["rows"])
        array[shard["owner"], slots] = mine[:, first : first + width]
    return array.reshape(-1, width)


def state_of(plan, logical):
    """A state that holds the tables; zeros where there are none to hold."""
    embeddings = EmbeddingCollection(plan, plan.make_mesh())
    replicated = NamedSharding(embeddings.mesh, PartitionSpec())

    def put(value, sharding=replicated):
        # JAX may not overwrite what NumPy holds.
        return jax.device_put(value, sharding, may_alias=False)

    def arrays(kind):
        return {
            s.name: put(lay_out(plan, s, kind, logical), embeddings.shardings[s.name])
            for s in plan.storages
        }

    of_states = {kind: arrays(kind) for kind in (WIDE, NARROW)}
    seed = int(abs(next(iter(logical.values()))[0, 0]) * 1e6)
    key = jax.jit(lambda: jax.random.key(seed), out_shardings=replicated)()
    state = TrainState(
        step=put(np.int32(7)),
        halted=put(np.bool_(False)),
        params={"w": put(next(iter(logical.values()))[:1])},
        dense_state=(),
        model_state={"key": key},
        storages=arrays(""),
        embedding_state={
            s.name: {kind: of_states[kind][s.name] for kind in of_states}
            for s in plan.storages
        },
    )
    return state, embeddings
