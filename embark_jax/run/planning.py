"""Plans the tables of a config for data that a description describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import embark_kernels

from embark_jax._base.agreement import PLAN, differences, parts
from embark_jax._base.config import ConfigError, config_error_at, read_text
from embark_jax._base.memory import bytes_text
from embark_jax.config import ExperimentConfig, NoModelConfig
from embark_jax.planner import Workload, plan_for
from embark_jax.planner.request.dense import DenseLoad, DenseNetwork, network_of
from embark_jax.planner.request.workload import STATE_VALUES
from embark_jax.plans import fleet as fleets
from embark_jax.plans.capacities import events_capacity, events_of_cut
from embark_jax.plans.clusters import REPLICATED
from embark_jax.plans.fleet import Fleet
from embark_jax.plans.forced import FREE, ForcedPlacement, with_small_replicated
from embark_jax.plans.options import Kernels
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import (
    FeatureSpec,
    TableSpec,
    embedding_shapes,
    embedding_width,
)
from embark_jax.plans.traffic import WORD_BYTES
from embark_jax.plans.wire import VALUE_BYTES, Wire
from embark_jax.statistics import hot_rows
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics

if TYPE_CHECKING:
    from embark_jax.data import Description

COUNTED_SAMPLES = 100_000
"""Number of random training samples that tell which rows are hot."""


class Planned(NamedTuple):
    """The plan of what a user describes.

    Attributes:
      workload: circumstances of the plan.
      plan: the plan.
      without_data: whether the data are not on this machine, so that only the config
        says what they are like.
    """

    workload: Workload
    plan: Plan
    without_data: bool = False


def wire(config: ExperimentConfig) -> Wire:
    formats = config.embedding.wire
    return Wire(formats.rows, formats.gradients, config.train.dense_wire)


def machines(config: ExperimentConfig) -> Fleet:
    """Returns the fleet that the plan is for. The figures of this machine are
    placeholders, but JAX says whether its devices are GPUs."""
    nodes, gpus_per_node = config.mesh.nodes, config.mesh.gpus_per_node
    if config.fleet is not None:
        its_gpus = fleets.load(config.fleet).gpus_per_node
        fleet = fleets.load(config.fleet, nodes, gpus_per_node)
        if gpus_per_node > its_gpus and not fleet.shared:
            raise ConfigError(
                f"mesh.gpus_per_node is {gpus_per_node}, more than the {its_gpus} that "
                f"each node of fleet {config.fleet} has; raise mesh.nodes instead"
            )
        return fleet
    import jax

    here = fleets.this_machine(nodes, gpus_per_node)
    return dataclasses.replace(here, shared=jax.default_backend() == "cpu")


def why_plain_xla() -> str:
    """Returns why the GPU kernels are not taken in some process, all of which must call
    this; "" if they are taken."""
    from embark_jax.launch.agreement import tell_all

    return next(filter(None, tell_all(embark_kernels.why_plain_xla(), "kernels")), "")


def kernels(config: ExperimentConfig) -> Kernels:
    """Returns the implementation of lookups and updates that runs: where the config
    does not name it, the GPU kernels if they pass their check in all processes."""
    if config.embedding.kernels == "auto":
        return "xla" if why_plain_xla() else "mosaic_gpu"
    return config.embedding.kernels


def make_plan(
    config: ExperimentConfig,
    data: Description,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    statistics: Statistics = NO_STATISTICS,
    advise: bool = False,
) -> Planned:
    """Plans the config's tables, with the placements that it forces. If they do not
    fit, the planner chooses the tiers of those for which the config names none.

    Raises:
      ConfigError: if no plan is possible, or the model does not suit the embeddings.
    """
    from embark_jax.run.accesses import sample_accesses  # which takes a second
    from embark_jax.run.dataset import source_of

    embedding, fleet = config.embedding, machines(config)
    needs_counts = embedding.hot_budget is not None and not statistics.samples
    if needs_counts and source_of(config).absent() is None:
        statistics = sample_accesses(config, COUNTED_SAMPLES)
    kinds = [embedding.optimizer_of(table.name).kind for table in tables]
    workload = Workload(
        fleet=fleet,
        batch_size=config.train.batch_size,
        zipf_exponent=data.zipf_exponent,
        capacity_slack=embedding.capacity_slack,
        optimizer=max(kinds, key=STATE_VALUES.__getitem__),
        statistics=statistics,
        wire=wire(config),
        dense=_dense_load(config, data, tables, features, statistics),
        micro_batches=config.train.micro_batches,
        overlap=not fleet.shared,
        sample_ids=sum(feature.hotness for feature in features),
        kernels=kernels(config),
        memory_gb=embedding.memory_gb,
    )
    forced = {name: table.forced for name, table in embedding.tables.items()}
    if config.train.hot_batches:
        forced = with_small_replicated(tables, forced)
    if embedding.hot_budget is not None:
        forced = _with_hot_rows(config, tables, forced, statistics)
    # Host devices have no memory but that of the host.
    tiers = [] if fleet.shared else with_open_tiers(config, tables)
    with config_error_at("embedding"):
        plan = plan_for(
            workload, tables, features, forced=forced, or_tables=tiers, advise=advise
        )
    prediction = plan.prediction
    if prediction is not None and (text := _counted_host_memory(config, plan, fleet)):
        said = dataclasses.replace(prediction, advice=(*prediction.advice, text))
        plan = dataclasses.replace(plan, prediction=said)
    return Planned(workload, plan)


def _counted_host_memory(config: ExperimentConfig, plan: Plan, fleet: Fleet) -> str:
    """Says what host memory rows may take, if they lie there and not all GPUs of a node
    are used; otherwise ""."""
    host_bytes, gpus = fleet.device.host_memory_bytes, fleet.gpus_per_node
    in_host = any(table.tier == "host" for table in plan.tables)
    if config.fleet is None or host_bytes is None or not in_host:
        return ""
    its_gpus = fleets.load(config.fleet).gpus_per_node
    if gpus == its_gpus:
        return ""
    return (
        f"tier host counts {bytes_text(gpus * host_bytes)} of a node's memory: the "
        f"share of {gpus} of its {its_gpus} GPUs"
    )


def _dense_load(
    config: ExperimentConfig,
    data: Description,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    statistics: Statistics,
) -> DenseLoad:
    """Returns what the dense layers take: those of the model, from shapes alone."""
    from embark_jax import models
    from embark_jax.run.optimizers import state_values

    model = config.model
    network = network_of(model, tables, features, data.dense_features)
    if not isinstance(model, NoModelConfig):
        shapes = embedding_shapes(tables, features)
        events = _events_of_sample(config, features, statistics)
        with config_error_at("model"):
            model = models.footprint(
                *(model, shapes, data.dense_features, events),
                config.train.batch_size // config.train.micro_batches,
                divided={f.name for f in features if f.pooling == "mean"},
                multiplied=not network,
                alone=config.mesh.devices == 1,
            )
        kept_bytes = model.activation_bytes
        network = network or DenseNetwork(
            top=model.products, moved_bytes=model.kept_bytes
        )
    else:
        rows_bytes = WORD_BYTES * embedding_width(tables, features)
        kept_bytes = model.kept_bytes + max(0, model.kept_bytes - rows_bytes)
    return DenseLoad(
        model.parameters,
        state_values(config.dense_optimizer),
        kept_bytes,
        config.train.dense,
        getattr(config.model, "compute_dtype", "float32"),
        network,
        getattr(model, "embedding_dtype", "float32"),
    )


def _events_of_sample(
    config: ExperimentConfig, features: Sequence[FeatureSpec], statistics: Statistics
) -> dict[str, float]:
    """Returns the events of a sample that there is room for in the dense layers, by
    sequence."""
    cuts = config.train.micro_batches
    samples = config.train.batch_size // config.mesh.devices
    rooms = {}
    for feature in features:
        if feature.sequence:
            longest = feature.hotness
            mean = statistics.mean_hotness(feature)
            room = events_capacity(samples, mean, longest)
            room = events_of_cut(room, samples // cuts, longest, cuts)
            rooms[feature.name] = room / (samples // cuts)
    return rooms


def with_open_tiers(
    config: ExperimentConfig, tables: Sequence[TableSpec]
) -> list[TableSpec]:
    """Returns the tables, of tier "auto" where the config names none."""
    named = {
        name
        for name, table in config.embedding.tables.items()
        if table.tier is not None
    }
    return [
        table
        if table.is_dynamic or table.name in named
        else dataclasses.replace(table, tier="auto")
        for table in tables
    ]


def _with_hot_rows(
    config: ExperimentConfig,
    tables: Sequence[TableSpec],
    forced: Mapping[str, ForcedPlacement],
    statistics: Statistics,
) -> dict[str, ForcedPlacement]:
    """Returns forced placements with the hot rows that the config's budget has room
    for, in tables of which the user fixes nothing.

    Raises:
      ConfigError: if no statistics say which rows are hot.
    """
    if not statistics.samples:
        raise ConfigError(
            "embedding.hot_budget: needs statistics of the data, which are not here; "
            "give those of `embark data stats --out FILE` with --stats FILE"
        )
    row_bytes = {
        table.name: hot_row_bytes(config, table)
        for table in tables
        if table.name in statistics.tables
        and not table.cached
        and forced.get(table.name, FREE) == FREE
    }
    assert config.embedding.hot_budget is not None
    hot = hot_rows.within_budget(statistics, row_bytes, config.embedding.hot_budget)
    rows = {table.name: table.rows for table in tables}
    return dict(forced) | {
        name: ForcedPlacement(REPLICATED)
        if count == rows[name]
        else ForcedPlacement(hot_rows=count)
        for name, count in hot.rows.items()
        if count
    }


def hot_row_bytes(config: ExperimentConfig, table: TableSpec) -> int:
    """Returns the bytes of a row and of its optimizer state on each device."""
    kind = config.embedding.optimizer_of(table.name).kind
    per_parameter, per_row = STATE_VALUES[kind]
    states = table.dim * per_parameter + per_row
    return VALUE_BYTES[table.dtype] * table.dim + WORD_BYTES * states


def read_plan(
    path: Path,
    config: ExperimentConfig,
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
) -> Plan:
    """Reads the plan in a file, which must be for this model, mesh and batch."""
    text = read_text(path)
    with config_error_at(str(path)):
        planned = Plan.from_json(text)
        planned.check_serves(with_open_tiers(config, tables), features)
    theirs = {
        "mesh": {"nodes": planned.nodes, "gpus_per_node": planned.gpus_per_node},
        "train": {"batch_size": planned.batch_size},
    }
    ours = parts(config.model_dump(mode="json"), PLAN)
    if lines := differences(theirs, ours, "in the plan"):
        raise ConfigError("\n  ".join([f"{path}: does not fit the config:", *lines]))
    return planned
