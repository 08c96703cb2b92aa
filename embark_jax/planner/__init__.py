"""Decides where every shard of every table lives. Needs no JAX and no device.

One folder follows the other, and imports point back: ``request`` (what is asked for),
``cost`` (the cost of a plan), and ``search`` (finds a plan). The plan itself is the
contract with all others, in ``plans``. ``README.md`` in this folder explains all on one
page.
"""

from embark_jax.planner.cost.pricing import PricedPlan, WorkItem, price
from embark_jax.planner.request.table_list import (
    TableList,
    load_table_list,
    read_table_list,
)
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.planning import plan, plan_for

__all__ = [
    "PricedPlan",
    "TableList",
    "WorkItem",
    "Workload",
    "load_table_list",
    "plan",
    "plan_for",
    "price",
    "read_table_list",
]
