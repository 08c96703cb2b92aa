"""Cached tables, compiled for H100s that are not there."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import RowwiseAdagrad
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from embark_jax.embedding import key_index
from embark_jax.embedding.cached import Incoming, make_swap, row_values
from embark_jax.embedding.collection import BATCH, EmbeddingCollection
from embark_jax.planner import ForcedPlacement, plan
from embark_jax.tables import FeatureSpec, TableSpec
from tests.gpu_compile.test_train_step import h100_mesh, pytestmark  # noqa: F401

WIDTH, SLOTS, KEYS = 128, 1_000_000, 1 << 16


def test_to_find_keys_moves_at_most_a_quarter_of_what_a_lookup_moves():
    """Of keys of two words, at width 128. Of each key the program reads two buckets and
    a slot; all else is arrays of so many keys, each written once and read once."""
    device = SingleDeviceSharding(h100_mesh(1).devices.flat[0])
    index, keys = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=device),
        jax.eval_shape(
            lambda: (key_index.empty_index(SLOTS, 2), jnp.zeros((KEYS, 2), jnp.uint32))
        ),
    )
    hlo = jax.jit(key_index.find).lower(index, keys).compile().as_text()
    entry = hlo[hlo.index("ENTRY") :].split("\n", 1)[1]
    between = 0
    for line in entry.splitlines():
        if "fusion(" not in line and "parameter(" not in line:
            continue  # names parts of what a fusion gives
        result = line.split(" = ")[1].split("fusion(")[0].split("parameter(")[0]
        for kind, shape in re.findall(rf"(\w+)\[({KEYS}[\d,]*)\]", result):
            item = {"pred": 1, "s32": 4, "u32": 4}[kind]
            between += 2 * item * math.prod(map(int, shape.split(",")))
    buckets = key_index.CHOICES * key_index.WAYS * 2 * 4
    found = between / KEYS + buckets + 4
    lookup = 4 + 2 * WIDTH * 4  # each row is read and written
    assert buckets < found <= lookup / 4
    print(f"{found:.0f} bytes to find a key, {lookup} to look its row up")


def test_a_swap_moves_rows_in_place():
    mesh, optimizer = h100_mesh(1), RowwiseAdagrad(0.1)
    table = TableSpec("t", 80_000_000, WIDTH, tier="host", slots=8_000_000)
    planned = plan(
        [table],
        [FeatureSpec("t")],
        "dgx-h100",
        8 * 1024,
        forced={"t": ForcedPlacement("ub", row_shards=8)},
    )
    collection = EmbeddingCollection(planned, mesh)
    (name,) = collection.cached

    def array(rows, width, dtype=np.float32):
        sharding = NamedSharding(mesh, BATCH)
        shape = (rows, width) if width else (rows,)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    values = max(part.stop for part in row_values(optimizer, WIDTH).values())
    keys = array(8 * 4096, 1, np.uint32)
    moves = key_index.Moves(
        array(8 * 4096, 0, np.int32), keys, keys, array(8, 0, np.int32)
    )
    incoming = Incoming(
        array(8 * 2048, values),
        array(8 * 2048, 0, np.bool_),
        array(8 * 2048, 2, np.uint32),
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    key = jax.eval_shape(lambda: jax.random.key(0))
    compiled = (
        make_swap(collection, optimizer)
        .lower(
            {name: array(8_000_000, WIDTH)},
            {name: {"accumulator": array(8_000_000, 1)}},
            jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere),
            {name: moves},
            {name: incoming},
        )
        .compile()
    )
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 1_000_000 * values * 4
    assert memory.temp_size_in_bytes < 16 * 2048 * values * 4
