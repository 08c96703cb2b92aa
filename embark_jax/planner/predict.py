"""The cost of a plan by a cost model, whoever made the plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import weigh
from embark_jax.planner.cost import CostModel
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.memory import Memory
from embark_jax.planner.prediction import Prediction
from embark_jax.planner.storage import Placement
from embark_jax.planner.workload import Workload, shape_of
from embark_jax.tables import FeatureSpec


def predict(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Prediction:
    """What ``placements`` cost by ``model``; nothing is searched.

    Args:
      placements: of all tables.
      features: of the model.
      workload: fleet, batch, skew and optimizer.
      model: of the same workload.

    Returns:
      With a lower bound of zero: how near the optimum they are is not known.

    Raises:
      ValueError: if a placement is impossible on the fleet.
    """
    ledger = account(placements, features, workload, model)
    return Prediction(
        model.name,
        ledger.step_ms(),
        lower_bound_ms=0.0,
        device_ms=tuple(map(float, ledger.device_ms())),
        device_bytes=(ledger.bytes(),) * workload.devices,
    )


def account(
    placements: Sequence[Placement],
    features: Sequence[FeatureSpec],
    workload: Workload,
    model: CostModel,
) -> Ledger:
    """The ledger in which ``placements`` are entered."""
    problems = [p for each in placements for p in each.problems(workload.devices)]
    if problems:
        raise ValueError("; ".join(problems))
    shapes = [shape_of(each, features, workload) for each in placements]
    memory = Memory(workload)
    storages = sorted({shape.storage for shape in shapes})
    ledger = Ledger(storages, workload.devices, model, memory)
    for placement, shape in zip(placements, shapes, strict=True):
        owners = np.array(placement.devices, np.int64)
        ledger.add(weigh(shape, workload, model, memory), owners)
    return ledger
