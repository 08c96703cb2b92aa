"""The plan: who holds what, as data."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embark_jax.planner.layout.prediction import Breakdown, Prediction
from embark_jax.planner.layout.storage import Placement, Storage, lay_out
from embark_jax.tables import FeatureSpec, TableSpec, check_model

if TYPE_CHECKING:
    import jax

MESH_AXES = ("node", "gpu")
PLAN_VERSION = 5
MAX_SLOTS = 2**31 - 2**24
"""Slots are 32-bit; the rest numbers the places of a batch that hold no row."""
VIEWS: dict[str, Callable[[Plan], Any]] = {}
"""How a plan is shown, as "rich", "text" and "html". A plan knows no renderer:
``planner/report`` enters its own here."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The placement of every table of one model on one fleet.

    Attributes:
      features: the model's features.
      placements: one for each table.
      nodes, gpus_per_node: the mesh it is made for.
      batch_size: global batch that ``capacities`` are made for.
      capacities: for each "rb" and "ub" storage, the ids that one device can send to
        one other in a step.
      prediction: what the planner expects of it, if the planner made it.

    Raises:
      ValueError: with everything that makes it invalid: a table missing, a shard
        without owner, a capacity missing.
    """

    features: tuple[FeatureSpec, ...]
    placements: tuple[Placement, ...]
    nodes: int
    gpus_per_node: int
    batch_size: int
    capacities: Mapping[str, int]
    prediction: Prediction | None = None

    def __post_init__(self):
        check_model(self.tables, self.features)
        problems = [p for each in self.placements for p in each.problems(self.devices)]
        if self.batch_size % self.devices:
            problems.append(
                f"batch size {self.batch_size} must be a multiple of the "
                f"{self.devices} devices"
            )
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
        if needed != set(self.capacities):
            raise ValueError(
                f"capacities are given for {sorted(self.capacities)}, must be for the "
                f"sharded storages {sorted(needed)}"
            )
        bad = {n: c for n, c in self.capacities.items() if type(c) is not int or c < 1}
        if bad:
            raise ValueError(f"capacities {bad} must be positive integers")

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(placement.table for placement in self.placements)

    @functools.cached_property
    def storages(self) -> tuple[Storage, ...]:
        return lay_out(self.placements, self.features, self.devices)

    def check_serves(
        self, tables: Sequence[TableSpec], features: Sequence[FeatureSpec]
    ) -> None:
        """Raises ``ValueError`` if the plan was made for another model."""
        differences = []
        for kind, mine, theirs in (
            ("table", self.tables, tables),
            ("feature", self.features, features),
        ):
            planned = {spec.name: spec for spec in mine}
            wanted = {spec.name: spec for spec in theirs}
            for name in sorted(planned.keys() | wanted.keys()):
                if planned.get(name) != wanted.get(name):
                    differences.append(
                        f"{kind} {name!r}: plan has {planned.get(name)}, "
                        f"model has {wanted.get(name)}"
                    )
        if differences:
            raise ValueError("plan is for another model: " + "; ".join(differences))

    def make_mesh(self) -> jax.sharding.Mesh:
        """A ``("node", "gpu")`` mesh over the first devices of this process group.

        Raises:
          ValueError: if there are fewer devices than the plan needs.
        """
        import jax

        available = jax.devices()
        if len(available) < self.devices:
            raise ValueError(
                f"plan needs {self.nodes} × {self.gpus_per_node} = {self.devices} "
                f"devices, this machine shows {len(available)} "
                f"({available[0].platform}); plan for what is there"
            )
        return jax.make_mesh(
            (self.nodes, self.gpus_per_node),
            MESH_AXES,
            axis_types=(jax.sharding.AxisType.Auto,) * 2,
            devices=available[: self.devices],
        )

    def partition_specs(self) -> dict[str, jax.sharding.PartitionSpec]:
        """How each storage is sharded: over all devices by slots, or replicated."""
        from jax.sharding import PartitionSpec

        return {
            storage.name: PartitionSpec()
            if storage.replicated
            else PartitionSpec(MESH_AXES, None)
            for storage in self.storages
        }

    def __rich__(self) -> Any:
        return VIEWS["rich"](self)

    def __str__(self) -> str:
        return VIEWS["text"](self) if VIEWS else repr(self)

    def _repr_html_(self) -> str:
        return VIEWS["html"](self)

    def to_json(self) -> str:
        """The plan as a JSON object; ``from_json`` is its inverse."""
        value = {"version": PLAN_VERSION, **dataclasses.asdict(self)}
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Reads what ``to_json`` wrote.

        Raises:
          ValueError: if it is not a plan of this version.
        """
        value = json.loads(text)
        if not isinstance(value, dict) or "version" not in value:
            raise ValueError(
                f"not a plan: found {type(value).__name__} without version"
            )
        if value["version"] != PLAN_VERSION:
            raise ValueError(
                f"plan is of version {value['version']}, must be {PLAN_VERSION}: rows "
                "lie elsewhere in others; make it again with `embark plan`"
            )
        try:
            return cls(
                features=tuple(FeatureSpec(**each) for each in value["features"]),
                placements=tuple(_placement(each) for each in value["placements"]),
                nodes=value["nodes"],
                gpus_per_node=value["gpus_per_node"],
                batch_size=value["batch_size"],
                capacities=value["capacities"],
                prediction=_prediction(value.get("prediction")),
            )
        except (KeyError, TypeError, ArithmeticError) as error:
            raise ValueError(f"damaged plan: {error!r}") from error


def _placement(value: dict[str, Any]) -> Placement:
    return Placement(
        **value
        | {
            "table": TableSpec(**value["table"]),
            "devices": tuple(value["devices"]),
        }
    )


def _prediction(value: dict[str, Any] | None) -> Prediction | None:
    if value is None:
        return None
    fields = _tuples(value)
    if fields.get("breakdown") is not None:
        parts = _tuples(fields["breakdown"])
        parts["phase_ms"] = _tuples(parts["phase_ms"])
        fields["breakdown"] = Breakdown(**parts)
    return Prediction(**fields)


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    """With JSON's lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
