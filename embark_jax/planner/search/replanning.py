"""Plans again without the tables that take most of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from embark_jax.plans.alike import alike
from embark_jax.plans.plan import Plan
from embark_jax.plans.prediction import Removal


def replanned(
    plan: Plan, most: int, step_ms_without: Callable[[frozenset[str]], float]
) -> Plan:
    """Returns the plan, whose removals say how long the step of a new plan is without
    them, for those tables that take most of the step.

    Args:
      plan: a plan of the planner.
      most: number of tables, or of tables that are alike.
      step_ms_without: plans without these tables.
    """
    prediction = plan.prediction
    if prediction is None or prediction.breakdown is None:
        return plan
    breakdown, table_ms = prediction.breakdown, prediction.breakdown.table_ms
    groups = [
        tuple(p.table.name for p in each)
        for each in alike(plan.placements, plan.features)
    ]
    groups.sort(key=lambda names: -sum(table_ms[name] for name in names))
    largest = {frozenset(names) for names in groups[:most]}

    def planned_again(removal: Removal) -> Removal:
        names = frozenset(removal.tables)
        if names not in largest:
            return removal
        everything = len(names) == len(plan.placements)
        step_ms = 0.0 if everything else step_ms_without(names)
        return dataclasses.replace(removal, replanned_ms=step_ms)

    removals = tuple(map(planned_again, breakdown.removals))
    breakdown = dataclasses.replace(breakdown, removals=removals)
    prediction = dataclasses.replace(prediction, breakdown=breakdown)
    return dataclasses.replace(plan, prediction=prediction)
