"""Rules of rows, where tables have several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from embark_kernels import RowOptimizer

from embark_jax.plans.layout import Storage


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
