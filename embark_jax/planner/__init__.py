"""Decides where every shard of every table lives. Needs no JAX and no device.

One folder follows the other, and imports point back: ``request`` (what is asked for),
``cost`` (the cost of a plan), and ``search`` (finds a plan). The plan itself is the
contract with all others, in ``plans``. ``README.md`` in this folder explains all on one
page.
"""

from embark_jax.planner.cost.pricing import PricedPlan as PricedPlan
from embark_jax.planner.cost.pricing import WorkItem as WorkItem
from embark_jax.planner.cost.pricing import price as price
from embark_jax.planner.request.workload import Workload as Workload
from embark_jax.planner.search.planning import plan as plan
from embark_jax.planner.search.planning import plan_for as plan_for
