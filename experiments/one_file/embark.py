"""EMBark in one file: a DLRM-DCNv2 whose tables are sharded over eight devices.

EMBark (RecSys 2024, https://doi.org/10.1145/3640457.3688111) found that no single way
to shard embedding tables is right for all of them. It moves rows in three ways, and
takes for each table the one that moves the fewest bytes:

- DP (data parallel): every device has the table, and gradients are all-reduced; for
  small tables.
- RB (reduction-based): the owner of a shard pools the rows of each bag, and one sum
  travels; for bags of many ids.
- UB (unique-based): a row travels once to each device that needs it; for few ids a bag,
  and for popular rows.

The whole step is one XLA program. Nothing here imports embark_jax, which does the same
for any widths, columns in shards, hot rows, rows beyond memory, buckets sized by
statistics, and hierarchical exchanges.

    python embark.py       # 300 steps on 2 x 4 CPU devices, under a minute
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

NODES, GPUS = 2, 4
DEVICES = NODES * GPUS
AXES = ("node", "gpu")
BATCH = 512
LOCAL = BATCH // DEVICES
DIM = 16
DENSE = 13
RATE, EPS = 0.05, 1e-8


class Table(NamedTuple):
    """A table of ``rows × DIM``; each sample has one bag of ``hotness`` ids in it."""

    name: str
    rows: int
    hotness: int


TABLES = (Table("user", 50_000, 1), Table("item", 20_000, 20), Table("genre", 20, 3))


# ---- Plan: a cluster and owners for each table, by the bytes that a step moves ------

ROW, ID = 4 * DIM, 4
"""Bytes of a row and of an id."""


class Placement(NamedTuple):
    """Row r lies in row shard ``r % len(owners)``; in DP everywhere as on device 0."""

    table: Table
    cluster: str
    owners: tuple[int, ...]


def sent_bytes(table: Table, cluster: str, row_shards: int) -> float:
    """Returns the bytes that travel for a table in a step, from and to the owner of
    each of its shards; in DP, to and from every device."""
    ids = LOCAL * table.hotness
    if cluster == "dp":  # an all-reduce sends each gradient twice
        return 2 * table.rows * ROW
    if cluster == "rb":  # a sum for each bag of all devices, and its gradient
        return DEVICES * (2 * LOCAL * ROW + ids * ID / row_shards)
    # Each unique row of each device, and its gradient.
    rank = np.arange(table.rows + 1)
    share = np.diff(np.log1p(rank) / np.log1p(table.rows))  # as ``make_batch`` draws
    unique = np.sum(1 - (1 - share) ** ids)
    return DEVICES * unique * (2 * ROW + ID) / row_shards


def make_plan(tables: tuple[Table, ...]) -> list[Placement]:
    """Places table after table, the one with most ids and rows first.

    Each takes the cluster and the number of row shards after which the fullest device
    sends least, and its shards go to the devices that have least to send. A real
    planner, ``embark_jax.plan``, counts time in memory and latency, too, searches on,
    and bounds what any plan could reach.
    """
    sent = np.zeros(DEVICES)
    placements = []
    for table in sorted(tables, key=lambda t: t.rows * t.hotness, reverse=True):
        candidates = []
        for cluster in ("dp", "rb", "ub"):
            for shards in (1,) if cluster == "dp" else (1, 2, 4, 8):
                owners = np.argsort(sent, kind="stable")[:shards]
                after = sent.copy()
                everyone = slice(None) if cluster == "dp" else owners
                after[everyone] += sent_bytes(table, cluster, shards)
                at = (0,) if cluster == "dp" else tuple(owners.tolist())
                candidates.append((after, Placement(table, cluster, at)))
        sent, placement = min(candidates, key=lambda candidate: candidate[0].max())
        placements.append(placement)
    return placements


# ---- Storages: one sharded array for all tables of a cluster ------------------------


class Storage:
    """All shards of one cluster, as one array ``[DEVICES * slots, DIM]``. It is sharded
    regularly, however unlike the shards are: only data differs between devices."""

    spec = PartitionSpec(AXES)

    def __init__(self, placements: list[Placement]):
        self.tables = [p.table for p in placements]
        self.owners = {p.table.name: np.array(p.owners) for p in placements}
        # Of each table [row shards]: first slot at the owner, and number there.
        self.first, self.position = {}, {}
        used, held = np.zeros((2, DEVICES), int)
        for table in self.tables:
            owners = self.owners[table.name]
            self.first[table.name] = used[owners]
            self.position[table.name] = held[owners]
            used[owners] += -(-table.rows // len(owners))
            held[owners] += 1
        self.slots, self.positions = int(used.max()), int(held.max())

    def locate(self, table: Table, row: jax.Array):
        """Returns the row shard of each row, its owner, and the row's slot there."""
        owners, first = self.owners[table.name], self.first[table.name]
        shard = row % len(owners)
        slot = jnp.asarray(first)[shard] + row // len(owners)
        return shard, jnp.asarray(owners)[shard], slot

    def pool(self, rows: jax.Array) -> dict[str, jax.Array]:
        """Adds up the rows ``[ids, DIM]`` of each bag, table by table."""
        pooled, begin = {}, 0
        for table in self.tables:
            end = begin + LOCAL * table.hotness
            bags = rows[begin:end].reshape(LOCAL, table.hotness, DIM)
            pooled[table.name], begin = bags.sum(axis=1), end
        return pooled

    def spread(self, gradients: dict[str, jax.Array]) -> jax.Array:
        """Hands the gradient of each bag to all of its ids, ``[ids, DIM]``."""
        return jnp.concatenate(
            [jnp.repeat(gradients[t.name], t.hotness, axis=0) for t in self.tables]
        )


def swap(values: jax.Array) -> jax.Array:
    """Sends ``values[d]`` to device d; row s of the result came from device s."""
    return lax.all_to_all(values, AXES, split_axis=0, concat_axis=0, tiled=True)


def to_buckets(owner: jax.Array, *values: jax.Array, fill: int):
    """Puts values ``[n]`` into a bucket for each owner, ``[DEVICES, n]``, which has
    room for all; those of owner ``DEVICES`` are left out. Also returns their places."""
    n = len(owner)
    order = jnp.argsort(owner, stable=True)
    begin = jnp.searchsorted(owner[order], jnp.arange(DEVICES + 1))
    place = jnp.zeros(n, int).at[order].set(jnp.arange(n) - begin[owner[order]])
    empty = jnp.full((DEVICES, n), fill)
    return place, [empty.at[owner, place].set(v, mode="drop") for v in values]


def different(values: jax.Array, fill: int):
    """Returns the different values ``[n]``, with ``fill`` behind them, and for each
    value its place among them."""
    return jnp.unique(values, size=len(values), fill_value=fill, return_inverse=True)


# A cluster has a lookup, from ids ``[LOCAL, hotness]`` of each table to sums
# ``[LOCAL, DIM]``, and a backward, from gradients of these sums to gradients of rows:
# ``(slot, gradient)``, one for each row that was read. A table's gradient is never
# made. Both run on each device, on its own block of the storage.


class DP(Storage):
    """Data parallel: every device has all rows; gradients of all are summed."""

    spec = PartitionSpec()

    def lookup(self, block, ids):
        located = [self.locate(t, ids[t.name].reshape(-1)) for t in self.tables]
        slot = jnp.concatenate([slot for _, _, slot in located])
        return self.pool(block[slot]), slot

    def backward(self, slot, gradients):
        of_rows = jnp.zeros((self.slots, DIM)).at[slot].add(self.spread(gradients))
        return jnp.arange(self.slots), lax.psum(of_rows, AXES)


class RB(Storage):
    """Reduction-based: ids travel to owners, and one sum a bag comes back."""

    def lookup(self, block, ids):
        located = []
        for table in self.tables:
            shard, owner, slot = self.locate(table, ids[table.name].reshape(-1))
            sample = jnp.repeat(jnp.arange(LOCAL), table.hotness)
            position = jnp.asarray(self.position[table.name])[shard]
            located.append((owner, slot, position * LOCAL + sample))
        owner, slot, bag = map(jnp.concatenate, zip(*located, strict=True))
        _, (slot, bag) = to_buckets(owner, slot, bag, fill=self.slots)
        slot, bag = swap(slot), swap(bag)  # what each device asks this one for
        bags = self.positions * LOCAL
        bag = jnp.where(slot < self.slots, bag, 0) + bags * jnp.arange(DEVICES)[:, None]
        slot, bag = slot.reshape(-1), bag.reshape(-1)
        rows = block.at[slot].get(mode="fill", fill_value=0)
        sums = jax.ops.segment_sum(rows, bag, DEVICES * bags)
        sums = swap(sums.reshape(DEVICES, self.positions, LOCAL, DIM))
        at = {name: (self.owners[name], self.position[name]) for name in self.owners}
        return {name: sums[at[name]].sum(axis=0) for name in at}, (slot, bag)

    def backward(self, route, gradients):
        slot, bag = route
        sums = jnp.zeros((DEVICES, self.positions, LOCAL, DIM))
        for name, gradient in gradients.items():
            sums = sums.at[self.owners[name], self.position[name]].set(gradient[None])
        return slot, swap(sums).reshape(-1, DIM)[bag]


class UB(Storage):
    """Unique-based: each row that a device needs comes once, and is pooled there."""

    def lookup(self, block, ids):
        located = [self.locate(t, ids[t.name].reshape(-1)) for t in self.tables]
        _, owner, slot = map(jnp.concatenate, zip(*located, strict=True))
        unique, of_id = different(owner * self.slots + slot, DEVICES * self.slots)
        owner, slot = unique // self.slots, unique % self.slots
        place, (slot,) = to_buckets(owner, slot, fill=self.slots)
        slot = swap(slot)
        rows = swap(block.at[slot].get(mode="fill", fill_value=0))
        owner, place = owner[of_id], place[of_id]
        return self.pool(rows[owner, place]), (slot, owner, place)

    def backward(self, route, gradients):
        slot, owner, place = route
        of_rows = jnp.zeros((*slot.shape, DIM))
        of_rows = of_rows.at[owner, place].add(self.spread(gradients))
        return slot.reshape(-1), swap(of_rows).reshape(-1, DIM)


CLUSTERS = {"dp": DP, "rb": RB, "ub": UB}


def update(block, accumulator, slot, gradient):
    """Sums the gradients of equal rows, and applies row-wise Adagrad once to each
    touched row, in place. Its accumulator sums the mean squares of a row's gradient."""
    rows, of_row = different(slot, fill=len(block))
    sums = jax.ops.segment_sum(gradient, of_row, len(slot))
    in_place = {"mode": "drop", "unique_indices": True}
    square = jnp.mean(sums**2, axis=1)
    accumulator = accumulator.at[rows].add(square, **in_place)
    scale = RATE / (jnp.sqrt(accumulator.at[rows].get(mode="clip")) + EPS)
    return block.at[rows].add(-scale[:, None] * sums, **in_place), accumulator


# ---- Model: DLRM-DCNv2, in Flax ----------------------------------------------------


class DLRMDCNv2(nnx.Module):
    """Dense features go through the bottom MLP. Its output and all embeddings go
    through low-rank cross layers, ``x0 * (W (V x) + b) + x``, and the top MLP
    (https://arxiv.org/abs/2008.13535)."""

    def __init__(self, tables, *, rngs, bottom=64, top=64, rank=16):
        self.names = sorted(table.name for table in tables)
        width = DIM * (1 + len(tables))
        linear = functools.partial(nnx.Linear, rngs=rngs)
        self.bottom = nnx.List([linear(DENSE, bottom), linear(bottom, DIM)])
        self.low, self.high = linear(width, rank, use_bias=False), linear(rank, width)
        self.top = nnx.List([linear(width, top), linear(top, 1)])

    def __call__(self, dense, embeddings):
        for layer in self.bottom:
            dense = nnx.relu(layer(dense))
        x0 = jnp.concatenate([dense, *(embeddings[n] for n in self.names)], axis=1)
        x = x0 * self.high(self.low(x0)) + x0
        return self.top[1](nnx.relu(self.top[0](x)))[:, 0]


# ---- Step: one program for all devices ---------------------------------------------


def make_state(storages, mesh, model, optimizer, initial_rows):
    """Returns the state of training: dense parameters, storages, and theirs."""
    parameters = nnx.state(model, nnx.Param)
    blocks, accumulators = {}, {}
    for name, storage in storages.items():
        devices = 1 if name == "dp" else DEVICES
        array = np.zeros((devices * storage.slots, DIM), np.float32)
        for table in storage.tables:
            _, owner, slot = storage.locate(table, jnp.arange(table.rows))
            array[owner * storage.slots + slot] = initial_rows(table)
        sharding = NamedSharding(mesh, storage.spec)
        blocks[name] = jax.device_put(array, sharding)
        accumulators[name] = jax.device_put(np.zeros(len(array), np.float32), sharding)
    return parameters, optimizer.init(parameters), blocks, accumulators


def make_step(storages, mesh, model, optimizer):
    """Returns the compiled step: ``(state, batch) -> (state, loss)``."""
    graph = nnx.graphdef(model)

    def on_each_device(state, batch):
        parameters, optimizer_state, blocks, accumulators = state
        dense, ids, labels = batch
        pooled, routes = {}, {}
        for name, storage in storages.items():
            sums, routes[name] = storage.lookup(blocks[name], ids)
            pooled |= sums

        def loss_of(parameters, pooled):
            logits = nnx.merge(graph, parameters)(dense, pooled)
            losses = optax.sigmoid_binary_cross_entropy(logits, labels)
            return losses.sum() / BATCH

        loss, gradients = jax.value_and_grad(loss_of, (0, 1))(parameters, pooled)
        of_parameters, of_pooled = gradients
        loss, of_parameters = lax.psum((loss, of_parameters), AXES)
        change, optimizer_state = optimizer.update(of_parameters, optimizer_state)
        parameters = optax.apply_updates(parameters, change)
        for name, storage in storages.items():
            of_tables = {t.name: of_pooled[t.name] for t in storage.tables}
            slot, gradient = storage.backward(routes[name], of_tables)
            blocks[name], accumulators[name] = update(
                blocks[name], accumulators[name], slot, gradient
            )
        return (parameters, optimizer_state, blocks, accumulators), loss

    specs = {name: storage.spec for name, storage in storages.items()}
    of_state = (PartitionSpec(), PartitionSpec(), specs, specs)
    takes, returns = (of_state, PartitionSpec(AXES)), (of_state, PartitionSpec())
    step = jax.shard_map(
        on_each_device, mesh=mesh, in_specs=takes, out_specs=returns, check_vma=False
    )
    return jax.jit(step, donate_argnums=0)  # so that tables are updated in place


# ---- Data and training --------------------------------------------------------------


def make_batch(step: int):
    """Returns dense features, ids and labels of a step; small ids are popular."""
    rng = np.random.default_rng([0, step])
    dense = rng.normal(size=(BATCH, DENSE)).astype(np.float32)
    score = dense[:, :3].sum(axis=1)
    ids = {}
    for table in TABLES:
        uniform = rng.random((BATCH, table.hotness))
        drawn = np.floor(np.expm1(uniform * np.log1p(table.rows)))
        ids[table.name] = np.minimum(drawn, table.rows - 1).astype(np.int32)
        score += np.sin(ids[table.name] + 1.0).sum(axis=1)  # what a row stands for
    labels = rng.random(BATCH) < 1 / (1 + np.exp(-score))
    return dense, ids, labels.astype(np.float32)


def initial_rows(table: Table) -> np.ndarray:
    """Returns the first values of a table, ``[rows, DIM]``."""
    rng = np.random.default_rng([1, *table.name.encode()])
    bound = table.rows**-0.5
    return rng.uniform(-bound, bound, (table.rows, DIM)).astype(np.float32)


def train(steps: int, initial_rows=initial_rows) -> list[float]:
    """Plans, trains, and returns the loss of each step."""
    placements = make_plan(TABLES)
    for placement in placements:
        print(f"{placement.table.name:8}{placement.cluster}  {placement.owners}")
    mesh = jax.make_mesh((NODES, GPUS), AXES)
    of_batch = NamedSharding(mesh, PartitionSpec(AXES))
    storages = {
        name: CLUSTERS[name]([p for p in placements if p.cluster == name])
        for name in sorted({p.cluster for p in placements})
    }
    model, optimizer = DLRMDCNv2(TABLES, rngs=nnx.Rngs(0)), optax.adagrad(0.02)
    state = make_state(storages, mesh, model, optimizer, initial_rows)
    run = make_step(storages, mesh, model, optimizer)
    losses = []
    for step in range(1, steps + 1):
        state, loss = run(state, jax.device_put(make_batch(step), of_batch))
        losses.append(float(loss))
        if step % 50 == 0:
            print(f"step {step:4}  loss {np.mean(losses[-50:]):.4f}")
    return losses


if __name__ == "__main__":
    train(300)
