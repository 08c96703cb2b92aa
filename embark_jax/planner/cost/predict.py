"""The cost of a plan by a cost model, whatever made the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.cost.candidates import Candidates, candidates_of
from embark_jax.planner.cost.memory import STORED_TIERS, Memory
from embark_jax.planner.cost.model import CostModel
from embark_jax.planner.cost.objective import PEAK_IDS, Loads, Objective
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.shapes import ranges_of
from embark_jax.planner.request.workload import Workload, events_of_device
from embark_jax.plans.capacities import events_of
from embark_jax.plans.prediction import Prediction
from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec


class Priced(NamedTuple):
    """A plan as the objective sees it: candidate i is for row range i, with its owners
    in ``owners[i]``."""

    candidates: Candidates
    owners: list[np.ndarray]
    loads: Loads
    objective: Objective


def predict(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Prediction:
    """Predicts the cost of ``placements`` by ``model``, without a search.

    Args:
      placements: placements of all tables.
      features: features of the model.
      workload: circumstances of the plan: fleet, batch, skew and optimizer.
      model: cost model of the same workload.

    Returns:
      A prediction with a lower bound of zero: its distance from the optimum is unknown.

    Raises:
      ValueError: if a placement is impossible on the fleet.
    """
    priced = price(placements, features, workload, model)
    stored_bytes = priced.objective.stored_bytes(priced.loads).tolist()
    of_tiers = zip(STORED_TIERS, stored_bytes, strict=True)
    return Prediction(
        model.name,
        priced.objective.step_ms(priced.loads),
        lower_bound_ms=0.0,
        device_ms=tuple(map(float, priced.objective.device_ms(priced.loads))),
        device_bytes=(priced.objective.bytes(priced.loads),) * workload.devices,
        stored_bytes={tier: size for tier, size in of_tiers if size},
        kernels=workload.kernels if isinstance(model, ProgramModel) else "",
        overlap=workload.overlap,
    )


def price(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Priced:
    """Returns the loads of ``placements``, with what prices them."""
    problems = [
        problem
        for placement in placements
        for problem in placement.problems(workload.devices)
    ]
    if problems:
        raise ValueError("; ".join(problems))
    ranges = ranges_of(placements, workload)
    candidates = candidates_of(ranges, features, workload, model)
    loads = Loads(candidates, workload)
    owners = [np.array(rows.devices, np.int64) for rows in ranges]
    for i, of_range in enumerate(owners):
        loads.add(i, of_range)
    memory = Memory(workload)
    objective = Objective(candidates.storages, workload, model, memory)
    return Priced(candidates, owners, loads, objective)


def capacities(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
) -> dict[str, int]:
    """Returns the ids that one device may send to one other in a step, for each sharded
    storage; and for each sequence that is not full, the events of a device.

    Args:
      placements: placements of all tables.
      features: features of the model.
      workload: circumstances of the plan: fleet, batch, skew and slack.
    """
    priced = price(placements, features, workload, ProgramModel(workload))
    peaks = priced.objective.peaks(priced.loads)[PEAK_IDS]
    of_storages = {
        storage.name: max(1, int(capacity))
        for storage, capacity in zip(priced.objective.storages, peaks, strict=True)
        if not storage.of_cluster.replicated
    }
    events = {f: events_of_device(f, workload) for f in features if f.sequence}
    of_sequences = {
        events_of(feature.name): room
        for feature, room in events.items()
        if room < workload.device_batch * feature.hotness
    }
    return of_storages | of_sequences
