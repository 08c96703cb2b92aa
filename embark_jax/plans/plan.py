"""The plan: the owners of all shards, as data."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pydantic

from embark_jax._base.agreement import differences
from embark_jax._base.validation import problems_of
from embark_jax.plans.capacities import events_of, of_storage
from embark_jax.plans.layout import Storage, lay_out
from embark_jax.plans.placement import Placement, sequence_problems
from embark_jax.plans.prediction import Prediction
from embark_jax.plans.tables import (
    MOST_BATCH,
    MOST_DEVICES,
    FeatureSpec,
    TableSpec,
    check_model,
    positive_int,
)

if TYPE_CHECKING:
    import jax

MESH_AXES = ("node", "gpu")
PLAN_VERSION = 12
MOST, MOST_PROBLEMS = 100_000, 50
"""Largest number of tables or features, and of problems that an error lists."""
MAX_SLOTS = 2**31 - 2**24
"""Slots, and places in buffers, are 32-bit; larger numbers stand for elements of a
batch that hold no row."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The placement of every table of one model on one fleet.

    Attributes:
      features: the model's features.
      placements: one for each table.
      nodes, gpus_per_node: mesh that the plan is made for.
      batch_size: global batch that ``capacities`` are made for.
      capacities: for each sharded storage, the ids that one device can send to
        one other in a step; for a storage that is not cached, named by
        ``capacities.rows_of``, the rows that a device can update in a step; for a
        sequence, by ``capacities.events_of``, the events that the samples of a device
        may have. Without one of the latter two there is room for all that may come.
      prediction: cost that the planner expects, if the planner made the plan.

    Raises:
      ValueError: if the plan is invalid; the message names every problem, such as a
        missing table, a shard without owner, a missing capacity.
    """

    # ``from_json`` validates everything in a plan this way, too.
    __pydantic_config__: ClassVar = pydantic.ConfigDict(extra="forbid", strict=True)

    features: tuple[FeatureSpec, ...]
    placements: tuple[Placement, ...]
    nodes: int
    gpus_per_node: int
    batch_size: int
    capacities: Mapping[str, int]
    prediction: Prediction | None = None

    def __post_init__(self):
        for key in ("nodes", "gpus_per_node", "batch_size"):
            limit = MOST_BATCH if key == "batch_size" else MOST_DEVICES
            positive_int(key, getattr(self, key), limit)
        check_model(self.tables, self.features)
        problems = [
            p for placement in self.placements for p in placement.problems(self.devices)
        ]
        clusters = {p.table.name: p.cluster for p in self.placements}
        problems += sequence_problems(clusters, self.features)
        problems += [
            f"table {table.name!r}: slots is None, must be a number; plan() chooses one"
            for table in self.tables
            if table.cached and table.slots is None
        ]
        if self.batch_size % self.devices:
            problems.append(
                f"batch size {self.batch_size} must be a multiple of the "
                f"{self.devices} devices"
            )
        if self.prediction is not None:
            names = [table.name for table in self.tables]
            problems += self.prediction.problems(names, self.devices)
        if problems:
            raise ValueError("; ".join(problems))
        for storage in self.storages:
            if storage.slots_per_device > MAX_SLOTS:
                raise ValueError(
                    f"storage {storage.name!r} needs {storage.slots_per_device:,} "
                    f"slots on a device, at most {MAX_SLOTS:,}: "
                    "split its tables further"
                )
        needed = {s.name for s in self.storages if not s.replicated}
        possible = {name for s in self.storages for name in of_storage(s.kind)}
        possible |= {events_of(f.name) for f in self.features if f.sequence}
        if not needed <= set(self.capacities) <= possible:
            raise ValueError(
                f"capacities are given for {sorted(self.capacities)}, must be for the "
                f"sharded storages {sorted(needed)}, and may be for rows and sequences"
            )
        for name, capacity in self.capacities.items():
            # A device has room for as many ids for each of the devices.
            buckets = self.devices if name in needed else 1
            positive_int(f"capacities.{name}", capacity, MAX_SLOTS // buckets)

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return self.nodes * self.gpus_per_node

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The model's tables, in the order of ``placements``."""
        return tuple(placement.table for placement in self.placements)

    @functools.cached_property
    def storages(self) -> tuple[Storage, ...]:
        return lay_out(self.placements, self.features, self.devices)

    @functools.cached_property
    def events(self) -> dict[str, int]:
        """For each sequence, the events of a device's samples that a step has room
        for."""
        batch = self.batch_size // self.devices
        full = {f.name: batch * f.hotness for f in self.features if f.sequence}
        return {
            name: min(events, self.capacities.get(events_of(name), events))
            for name, events in full.items()
        }

    def check_serves(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
    ) -> None:
        """Raises ``ValueError`` if the plan was made for another model."""
        by_name = functools.partial(sorted, key=lambda spec: spec.name)
        planned, wanted = (
            {
                kind: {spec.name: dataclasses.asdict(spec) for spec in by_name(specs)}
                for kind, specs in (("tables", tables), ("features", features))
            }
            for tables, features in ((self.tables, self.features), (tables, features))
        )
        for name, table in wanted["tables"].items():
            for key, left_open in (("tier", "auto"), ("slots", None)):
                if table[key] == left_open and name in planned["tables"]:
                    planned["tables"][name][key] = left_open
        if lines := differences(planned, wanted, "in the plan"):
            raise ValueError("plan is for another model: " + "; ".join(lines))

    def with_slots(self, slots: Mapping[str, int]) -> Plan:
        """Returns the plan with so many slots for dynamic tables: one with fewer
        doubles until it has enough, or the most that it may have."""
        placements = [
            dataclasses.replace(
                placement, table=placement.table.with_slots(slots[placement.table.name])
            )
            if placement.table.name in slots
            else placement
            for placement in self.placements
        ]
        return dataclasses.replace(self, placements=tuple(placements))

    def make_mesh(self) -> jax.sharding.Mesh:
        """Makes a ``("node", "gpu")`` mesh of the first devices of this process group.

        Raises:
          ValueError: if there are fewer devices than the plan needs.
        """
        import jax

        available = jax.devices()
        if len(available) < self.devices:
            raise ValueError(
                f"plan needs {self.nodes} × {self.gpus_per_node} = {self.devices} "
                f"devices, this machine shows {len(available)} "
                f"({available[0].platform}); plan for what is there, or make as many "
                "devices of a CPU before JAX is used: "
                f'jax.config.update("jax_num_cpu_devices", {self.devices})'
            )
        return jax.make_mesh(
            (self.nodes, self.gpus_per_node),
            MESH_AXES,
            axis_types=(jax.sharding.AxisType.Auto,) * 2,
            devices=available[: self.devices],
        )

    def to_json(self) -> str:
        """Returns the plan as a JSON object; ``from_json`` is its inverse."""
        value = {"version": PLAN_VERSION, **dataclasses.asdict(self)}
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Reads the output of ``to_json``.

        Raises:
          ValueError: if it is no plan of this version; or with all its problems, one a
            line.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"damaged plan: {error}") from None
        except RecursionError:
            raise ValueError("damaged plan: is nested too deeply") from None
        version = value.get("version") if isinstance(value, dict) else "none"
        if version != PLAN_VERSION:
            raise ValueError(
                f"not a plan of version {PLAN_VERSION}: found {version}; make "
                "it again with `embark plan`"
            )
        del value["version"]
        for key in ("features", "placements"):
            if isinstance(entries := value.get(key), list) and len(entries) > MOST:
                raise ValueError(
                    f"damaged plan: {key} has {len(entries):,} entries, must have at "
                    f"most {MOST:,}"
                )
        try:
            return pydantic.TypeAdapter(cls).validate_json(json.dumps(value))
        except pydantic.ValidationError as error:
            found = problems_of(error, value).items()
            problems = [f"{key}: {text}" if key else text for key, text in found]
            if more := len(problems[MOST_PROBLEMS:]):
                problems[MOST_PROBLEMS:] = [f"and {more:,} more"]
            raise ValueError("\n  ".join(["damaged plan:", *problems])) from None
