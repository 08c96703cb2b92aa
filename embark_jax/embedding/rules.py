"""Rules of rows, where tables have several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from embark_kernels import RowOptimizer
from embark_kernels.optimizers import ROW_OPTIMIZERS

from embark_jax.plans.layout import Storage
from embark_jax.plans.plan import Plan
from embark_jax.plans.traffic import WORD_BYTES


@dataclasses.dataclass(frozen=True)
class RowRules:
    """The rule of each table's rows.

    Attributes:
      default: rule of the tables whose ``TableSpec.optimizer`` is "".
      named: rules of the others, by that name.
    """

    default: RowOptimizer
    named: Mapping[str, RowOptimizer]


AnyRule = RowOptimizer | RowRules
"""One rule for all tables, or several."""


def rule_of(rules: AnyRule, storage: Storage) -> RowOptimizer:
    """Returns the rule of the rows of a storage.

    Raises:
      ValueError: if its tables name another rule.
    """
    name = storage.kind.rule
    default, named = rules, {}
    if isinstance(rules, RowRules):
        default, named = rules.default, rules.named
    assert not isinstance(default, RowRules)
    if not name:
        return default
    if name not in named:
        raise ValueError(
            f"table {storage.table.name!r}: optimizer is {name!r}, must be "
            f"one of those in RowRules: {', '.join(sorted(named)) or 'none'}"
        )
    return named[name]


def initial_states(
    rules: AnyRule, storage: Storage, devices: int
) -> dict[str, jax.Array]:
    """Returns the initial states of all rows of a storage, by name: one array each for
    the blocks of all devices."""
    rule = rule_of(rules, storage)
    slots = storage.slots_per_device * (1 if storage.replicated else devices)
    return {
        state: jnp.full((slots, width), rule.initial_state)
        for state, width in rule.state_widths(storage.width).items()
    }


def check_planned(plan: Plan, rules: AnyRule) -> None:
    """Raises ``ValueError`` if the states of rows take more memory than a plan counted.

    Args:
      plan: the plan.
      rules: rules of its tables' rows.
    """
    if plan.prediction is None:
        return
    planned = ROW_OPTIMIZERS[plan.prediction.optimizer](1.0)
    more_bytes, largest = 0, rule_of(rules, plan.storages[0])
    for storage in plan.storages:
        rule = rule_of(rules, storage)
        largest = max(largest, rule, key=lambda each: _values(each, storage.width))
        values = _values(rule, storage.width) - _values(planned, storage.width)
        more_bytes += WORD_BYTES * storage.slots_per_device * values
    if more_bytes <= 0:
        return
    names = {rule: name for name, rule in ROW_OPTIMIZERS.items()}
    planned_bytes = max(plan.prediction.device_bytes)
    raise ValueError(
        f"the plan counts {planned_bytes / 1e6:,.1f} MB a device, with the state of "
        f"{plan.prediction.optimizer}; {type(largest).__name__} needs "
        f"{(planned_bytes + more_bytes) / 1e6:,.1f} MB: plan for it, by "
        f"ej.plan(…, optimizer={names.get(type(largest), 'adam')!r}), or by "
        "embedding.optimizer in the config of `embark plan`"
    )


def _values(rule: RowOptimizer, width: int) -> int:
    """Returns the values that a rule keeps for a row."""
    return sum(rule.state_widths(width).values())


def step_factors(rules: AnyRule, step: jax.Array) -> list[jax.Array]:
    """Returns the ``[]`` numbers of all rules that depend on the step alone, such as
    the factor of a schedule; ``step`` is as in ``EmbeddingCollection.update``."""
    if isinstance(rules, RowRules):
        all_rules = [rules.default, *rules.named.values()]
    else:
        all_rules = [rules]
    return [
        jnp.asarray(factor, jnp.float32)
        for rule in all_rules
        for factor in rule.step_factors(step)
    ]
