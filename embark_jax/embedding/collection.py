"""The one object through which a step uses embeddings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels import Implementation, choose
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from embark_jax.embedding.batch_ids import BatchIds, DeviceBatch
from embark_jax.embedding.cluster import Cluster, Route
from embark_jax.embedding.data_parallel import DataParallel
from embark_jax.embedding.exchange import EXCHANGES, largest_over_devices
from embark_jax.embedding.indexing import StorageIndex, index_storage
from embark_jax.embedding.initial import initial_block
from embark_jax.embedding.joining import check_layout, join_columns
from embark_jax.embedding.lookups import (
    Lookups,
    PooledColumns,
    by_outputs,
    by_sums,
    split,
    sum_outputs,
)
from embark_jax.embedding.reduction import ReductionBased
from embark_jax.embedding.row_updates import (
    may_spoil,
    stays_finite,
    sum_rows,
    update_block,
)
from embark_jax.embedding.rules import AnyRule, initial_states, rule_of
from embark_jax.embedding.sequences import Spans, events_needed
from embark_jax.embedding.unique import UniqueBased
from embark_jax.plans import options
from embark_jax.plans.capacities import events_of, rows_of
from embark_jax.plans.layout import Storage
from embark_jax.plans.plan import MESH_AXES, Plan
from embark_jax.plans.tables import embedding_shapes
from embark_jax.plans.wire import FLOAT32, Wire

BATCH = PartitionSpec(MESH_AXES)
"""Samples over all devices."""

Storages = dict[str, jax.Array]
"""``[devices * slots_per_device, width]`` arrays by storage name, of their tables'
dtype; a replicated one is ``[slots_per_device, width]``."""
OptimizerState = dict[str, dict[str, jax.Array]]
"""Arrays by storage name and state name, shaped like the storage or ``[…, 1]``."""
CLUSTERS: dict[options.ClusterName, Callable[..., Cluster]] = {
    "dp": DataParallel,
    "rb": ReductionBased,
    "ub": UniqueBased,
}
"""The registry of clusters; each is called with the arguments of ``Cluster``."""


class TableState(NamedTuple):
    """All arrays of the tables: rows, and what optimizers keep of them."""

    storages: Storages
    optimizer: OptimizerState


class Routes(NamedTuple):
    """The routes of a batch's ids; they depend on no parameter.

    Attributes:
      storages: route of each storage's cluster, by storage name.
      mean_factors: ``[batch, features]`` of pooled features by name, if some have a
        mean: one over the total weight of a bag; 1 for other features.
      largest_weights: ``[batch, features]``, likewise, if some have weights: the
        largest absolute weight of a bag.
      event_weights: for each weighted sequence ``[total]`` absolute weights.
      needed: for each capacity of the plan the ``[]`` int32 that the batch needs.
      bad_ids: ``[devices, features]`` int32, in the order of the plan's features:
        number of ids in each device's samples that are neither a row of their table nor
        padding. They are treated as padding.
      any_bad: ``[]`` bool: whether any device has a bad id.
    """

    storages: dict[str, Route]
    mean_factors: jax.Array | None
    largest_weights: jax.Array | None
    event_weights: dict[str, jax.Array]
    needed: dict[str, jax.Array]
    bad_ids: jax.Array
    any_bad: jax.Array


class EmbeddingCollection:
    """All embedding tables of a model, placed as a plan says.

    All methods but ``init`` and ``init_optimizer`` must be called under ``jax.jit``.
    Profiles and audits of a program know its phases by their scopes: route, lookup and
    update.

    Args:
      plan: placement of every table.
      mesh: ``("node", "gpu")`` mesh with as many devices as the plan.
      wire: the formats in which rows and gradients travel.
      implementation: kernels of lookups and updates: "xla", "mosaic_gpu", or None for
        the kernels where they pass their check; see ``embark_kernels.choose``.
      hot_only: whether all ids of all batches are of replicated rows, so that sharded
        storages are only passed on. A batch with another id does not fit; capacities
        are zero.
      beside: width of other values that a model puts before its pooled embeddings. If
        these have one dim, which divides it, lookups leave room for them.

    Attributes:
      room: features of zeros at the front of each lookup, in whose place the model puts
        its own values.
      capacities: as in the plan; no id is sent where all are hot.
      clusters: cluster of each storage, by name.
      route_specs: partition specs of routes, as a prefix of their arrays.

    Raises:
      ValueError: if mesh and plan disagree, the implementation cannot handle the width
        or dtype of a storage, or JAX is set to 64 bits.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        *,
        wire: Wire = FLOAT32,
        implementation: str | None = None,
        hot_only: bool = False,
        beside: int = 0,
    ):
        check_mesh(plan, mesh)
        self.plan = plan
        self.mesh = mesh
        self.wire = wire
        self.implementation = implementation
        self.hot_only = hot_only
        self.beside = beside
        self._pooled = PooledColumns.of(plan, beside)
        self.room = self._pooled.room
        self._storages = {storage.name: storage for storage in plan.storages}
        self.capacities = {
            name: 0 if hot_only and name in self._storages else capacity
            for name, capacity in plan.capacities.items()
        }
        self._specs = {
            name: PartitionSpec()
            if storage.replicated
            else PartitionSpec(MESH_AXES, None)
            for name, storage in self._storages.items()
        }
        self.clusters: dict[str, Cluster] = {
            name: make_cluster(
                plan,
                storage,
                wire,
                choose(implementation, storage.width, jnp.dtype(storage.kind.dtype)),
                self.room,
            )
            for name, storage in self._storages.items()
            if storage.replicated or not hot_only
        }
        # Indexes of storages whose rows no id may ask for.
        self._passed_on = {
            name: index_of(plan, storage)
            for name, storage in self._storages.items()
            if name not in self.clusters
        }
        rows = {table.name: table.keys for table in plan.tables}
        self._rows = {f.name: rows[f.table] for f in plan.features}
        self._hotness = {f.name: f.hotness for f in plan.features}
        storages, everywhere = dict.fromkeys(self.clusters, BATCH), PartitionSpec()
        self.route_specs: Any = Routes(
            storages,
            BATCH,  # pyright: ignore
            BATCH,  # pyright: ignore
            BATCH,  # pyright: ignore
            everywhere,  # pyright: ignore
            BATCH,  # pyright: ignore
            everywhere,  # pyright: ignore
        )

    def with_plan(self, plan: Plan, hot_only: bool = False) -> EmbeddingCollection:
        """Returns the same tables under another plan for the same mesh."""
        return self._changed(plan, hot_only, self.beside)

    def with_values_beside(self, width: int) -> EmbeddingCollection:
        """Returns the same tables for a model that puts values of this width before its
        pooled embeddings."""
        return self._changed(self.plan, self.hot_only, width)

    def _changed(self, plan: Plan, hot_only: bool, beside: int) -> EmbeddingCollection:
        return EmbeddingCollection(
            plan,
            self.mesh,
            wire=self.wire,
            implementation=self.implementation,
            hot_only=hot_only,
            beside=beside,
        )

    def for_batch(self, hot: bool) -> EmbeddingCollection:
        """Returns the tables for a batch of hot rows alone, or for any other."""
        return self._for_hot_batches if hot else self

    @functools.cached_property
    def _for_hot_batches(self) -> EmbeddingCollection:
        return self.with_plan(self.plan, hot_only=True)

    @property
    def width_beside(self) -> int:
        """Width of the room for a model's own values."""
        return self.beside if self.room else 0

    @property
    def cached(self) -> dict[str, Storage]:
        """The storages that have fewer slots than rows, by name."""
        return {n: storage for n, storage in self._storages.items() if storage.cached}

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each feature's pooled embedding of a sample: ``(dim,)``, or
        ``(hotness, dim)`` for a sequence."""
        return embedding_shapes(self.plan.tables, self.plan.features)

    @property
    def shardings(self) -> dict[str, NamedSharding]:
        """The sharding of each storage, and of all its optimizer states."""
        return {name: NamedSharding(self.mesh, s) for name, s in self._specs.items()}

    def init(self, key: jax.Array) -> Storages:
        """Creates initial storages; each device creates only its own block. The slots
        of cached ones hold no rows yet.

        Args:
          key: a JAX random key; with it, each table's rows are the same in every plan.
        """

        return self._create(key)

    @functools.cached_property
    def _create(self) -> Callable[[jax.Array], Storages]:
        """Creates initial storages; compiled once."""

        def create(key):
            return {
                name: jnp.zeros((s.slots_per_device, s.width), s.kind.dtype)
                if s.cached
                else initial_block(s, key)
                for name, s in self._storages.items()
            }

        return jax.jit(self.map(create, (PartitionSpec(),), self._specs))

    def init_optimizer(self, optimizer: AnyRule) -> OptimizerState:
        """Creates the initial optimizer state, sharded like the storages."""

        def create():
            devices, storages = self.plan.devices, self._storages
            return {
                n: initial_states(optimizer, s, devices) for n, s in storages.items()
            }

        return jax.jit(create, out_shardings=self.state_shardings(optimizer))()

    def state_shardings(
        self, optimizer: AnyRule
    ) -> dict[str, dict[str, NamedSharding]]:
        """Returns the sharding of each array of ``init_optimizer``."""
        shardings = self.shardings
        return {
            name: dict.fromkeys(
                rule_of(optimizer, storage).state_widths(1), shardings[name]
            )
            for name, storage in self._storages.items()
        }

    def route(
        self,
        ids: Mapping[str, jax.Array],
        weights: Mapping[str, jax.Array],
        spans: Mapping[str, Spans] = MappingProxyType({}),
    ) -> Routes:
        """Finds out where each id goes; depends on no parameter.

        An id that is neither a row of its table nor -1 goes nowhere: it is counted, and
        treated as padding. Of a dynamic table any integer but -1 is a key.

        Args:
          ids: for each feature ``[batch, hotness]`` int32 or int64, -1 where padded;
            for a sequence ``[total]``, the events of each device's samples, up to the
            room that the plan has, as ``embark_kernels.packing.pack`` packs them.
          weights: for each weighted feature float32 of the same shape.
          spans: spans of the sequences.

        Raises:
          ValueError: if a feature is missing or has another shape or type.
        """
        return self.route_batch(join_columns(self.plan, ids, weights, spans))

    @jax.named_scope("sort")  # the phase in plans, most of which is sorting
    @jax.named_scope("route")
    def route_batch(self, batch: DeviceBatch) -> Routes:
        """Does what ``route`` does for the ids of a batch."""
        check_layout(self.plan, batch)

        def route(samples, events):
            ids = BatchIds(
                batch.layout, samples, batch.layout_of_events, events, self._rows
            )
            bad = ids.bad([f.name for f in self.plan.features])
            storages, needed, largest_here = {}, {}, {}
            for name, index in self._passed_on.items():
                needed[name] = index.any_row(index.requests(ids)).astype(jnp.int32)
            for name, cluster in self.clusters.items():
                requests = cluster.index.requests(ids)
                storages[name], largest_here[name] = cluster.route(requests)
            for name, of_sequence in batch.layout.columns(samples).spans.items():
                if events_of(name) in self.plan.capacities:
                    needed[events_of(name)] = events_needed(
                        of_sequence[:, 1], batch.cuts, self._hotness[name]
                    )
            # One collective for all of them; ids may have 64 bits.
            values = needed, largest_here, bad.sum(dtype=jnp.int32)
            joined, restore = ravel_pytree(values)
            needed, largest, bad_anywhere = restore(largest_over_devices(joined))
            for name, cluster in self.clusters.items():
                storages[name], capacities = cluster.finish(
                    storages[name], largest[name]
                )
                needed |= capacities
            needed = {n: needed.get(n, jnp.int32(0)) for n in self.plan.capacities}
            return Routes(
                storages,
                ids.mean_factors(self._pooled.features),
                ids.largest_weights(self._pooled.features),
                ids.event_weights(),
                needed,
                bad[None],
                bad_anywhere > 0,
            )

        return self.map(route, BATCH, self.route_specs)(batch.samples, batch.events)

    def needed(self, routes: Routes) -> dict[str, jax.Array]:
        """Returns the ``[]`` int32 that the batch needs of each capacity, in the order
        of the plan's."""
        return {name: routes.needed[name] for name in self.plan.capacities}

    def fits(self, routes: Routes) -> jax.Array:
        """Returns ``[]`` bool: whether the batch fits all capacities. If not, some ids
        are missing from the routes, and nothing of the step may be applied."""
        capacities = self.capacities.items()
        fits = [routes.needed[name] <= have for name, have in capacities]
        return jnp.all(jnp.array(fits, bool))

    @jax.named_scope("lookup")
    def lookup(
        self, storages: Storages, routes: Routes, dtype: DTypeLike = jnp.float32
    ) -> Lookups:
        """Returns the embeddings of a batch, pooled ones of a dtype; see
        ``by_feature``.

        Raises:
          ValueError: if nobody has brought the rows of cached tables into their slots.
        """
        for name in self.cached:
            if name in self.clusters and routes.storages[name].touched is None:
                raise ValueError(
                    f"storage {name!r} has slots for some of its rows alone, which "
                    "ej.Trainer brings there; train with it, or give the tables tier "
                    "'device' and no slots"
                )
        batch = self.plan.batch_size // self.plan.devices

        def lookup(storages, routes):
            outputs = []
            for name, cluster in self.clusters.items():
                route = routes.storages[name]
                by_block = cluster.lookup(storages[name], route, dtype)
                outputs += zip(cluster.index.blocks, by_block, strict=True)
            found = sum_outputs(
                outputs, self._pooled, routes.mean_factors, batch, dtype
            )
            empty = {  # of sequences of which no row lies in these storages
                name: jnp.zeros((events, self.output_shapes[name][-1]), jnp.float32)
                for name, events in self.plan.events.items()
            }
            return found._replace(sequences={**empty, **found.sequences})

        return self.map(lookup, (self._specs, self.route_specs), BATCH)(
            storages, routes
        )

    def by_feature(self, lookups: Lookups) -> dict[str, jax.Array]:
        """Returns the pooled embedding of each feature, ``[batch, dim]``, or of a
        sequence what ``lookups`` has."""
        return split(self._pooled, lookups)

    def largest_terms(self, gradients: Lookups, routes: Routes) -> list[jax.Array]:
        """Returns the largest absolute value of what a bag, or event, adds to the
        gradient of a row: its gradient, times factors and weights. On a device."""
        pooled = self._pooled
        terms = jnp.abs(gradients.pooled[:, self.room * pooled.run :])
        terms = terms.astype(jnp.float32)
        for factors in (routes.mean_factors, routes.largest_weights):
            if factors is not None:
                by_run = pooled.by_run(factors)[:, self.room :]
                terms = terms.reshape(*by_run.shape, -1).max(axis=2) * by_run
        largest = [terms]
        for name, gradient in gradients.sequences.items():
            term = jnp.abs(gradient).max(axis=1)
            largest.append(term * routes.event_weights.get(name, 1.0))
        return largest

    @jax.named_scope("update")
    def update(
        self,
        storages: Storages,
        state: OptimizerState,
        routes: Routes,
        gradients: Lookups,
        optimizer: AnyRule,
        step: jax.Array,
        apply: jax.Array,
        late_gradients: Lookups | None = None,
    ) -> tuple[Storages, OptimizerState, jax.Array]:
        """Updates each touched row once, in place where the arguments are donated.

        Nothing changes if a rule that may spoil rows would make one that is not finite.

        Args:
          storages, state: arrays of ``init`` and ``init_optimizer``.
          routes: result of ``route``, for the batch that was looked up.
          gradients: gradients of the loss by each array that ``lookup`` returned.
          optimizer: rule for touched rows, or rules.
          step: ``[]`` int32 number of this step, from 1.
          apply: ``[]`` bool; if false, nothing changes.
          late_gradients: the same gradients for rows that do not lie on every device,
            if those should leave later than gradients of other rows.

        Returns:
          The new arrays, and ``[]`` bool: whether the update was applied.
        """
        if late_gradients is None:
            late_gradients = gradients

        def update(storages, state, routes, gradients, late_gradients, step, apply):
            with jax.named_scope("gradients"):
                gradients, late_gradients = (
                    by_sums(each, self._pooled, routes.mean_factors)
                    for each in (gradients, late_gradients)
                )
            by_storage = {
                name: by_outputs(
                    cluster.index,
                    gradients if self._storages[name].replicated else late_gradients,
                    self._pooled,
                )
                for name, cluster in self.clusters.items()
            }
            rules = {
                name: rule_of(optimizer, self._storages[name]) for name in self.clusters
            }
            sums = {
                name: sum_rows(
                    cluster, routes.storages[name], by_storage[name], rules[name]
                )
                for name, cluster in self.clusters.items()
                if may_spoil(rules[name], storages[name].dtype)
            }
            finite = [
                stays_finite(storages[name], state[name], summed, rules[name], step)
                for name, summed in sums.items()
            ]
            if finite:
                spoiled = lax.psum(
                    (~jnp.stack(finite).all()).astype(jnp.int32), MESH_AXES
                )
                apply &= spoiled == 0
            for name, cluster in self.clusters.items():
                storages[name], state[name] = update_block(
                    cluster,
                    storages[name],
                    state[name],
                    routes.storages[name],
                    by_storage[name],
                    rules[name],
                    step,
                    apply,
                    sums.get(name),
                )
            return storages, state, apply

        state_specs = {
            name: dict.fromkeys(state[name], self._specs[name]) for name in state
        }
        in_specs = (
            self._specs,
            state_specs,
            self.route_specs,
            BATCH,
            BATCH,
            *[PartitionSpec()] * 2,
        )
        out_specs = self._specs, state_specs, PartitionSpec()
        mapped = self.map(update, in_specs, out_specs)
        return mapped(
            dict(storages),
            {name: dict(arrays) for name, arrays in state.items()},
            routes,
            gradients,
            late_gradients,
            step,
            apply,
        )

    def map(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Turns a function of one device's blocks into one of the whole arrays."""
        # check_vma off: replicated outputs are equal by construction, which the check
        # cannot see.
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )


def make_cluster(
    plan: Plan,
    storage: Storage,
    wire: Wire,
    implementation: Implementation,
    room: int = 0,
) -> Cluster:
    """Makes the cluster of a storage; arguments as in ``EmbeddingCollection``, but for
    the implementation of kernels, which is chosen."""
    index = index_of(plan, storage, room)
    most = index.max_rows
    return CLUSTERS[storage.kind.cluster](
        index=index,
        # RB alone sends partial sums, and its index has one block.
        exchange=EXCHANGES[storage.kind.exchange](
            index.blocks[0].partial_sums, plan.nodes, plan.gpus_per_node
        ),
        capacity=plan.capacities.get(storage.name, 0),
        rows=min(plan.capacities.get(rows_of(storage.name), most), most),
        wire=wire,
        implementation=implementation,
    )


def index_of(plan: Plan, storage: Storage, room: int = 0) -> StorageIndex:
    """Returns the index of a storage of the plan."""
    batch = plan.batch_size // plan.devices
    return index_storage(storage, plan.features, plan.devices, batch, plan.events, room)


def check_mesh(plan: Plan, mesh: Mesh) -> None:
    """Raises ``ValueError`` if mesh and plan disagree, or JAX is set to 64 bits."""
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "JAX is set to 64 bits (JAX_ENABLE_X64 or jax_enable_x64), in which rows, "
            "gradients and sums, which are float32 here, would become float64: unset "
            "it. Ids may have 64 bits without it"
        )
    needed = plan.nodes, plan.gpus_per_node
    if mesh.axis_names != MESH_AXES or mesh.devices.shape != needed:
        raise ValueError(
            f"mesh is {dict(mesh.shape)}, the plan needs "
            f"{dict(zip(MESH_AXES, needed, strict=True))}"
        )
