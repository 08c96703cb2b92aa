"""Decides where every shard of every table lives. Needs no JAX and no device.

One folder follows the other, and imports point back: ``request`` (the request),
``layout`` (the plan), ``cost`` (the cost of a plan), ``search`` (finds a plan), and
``report`` (shows it). ``README.md`` in this folder explains all on one page.
"""

import embark_jax.planner.report  # noqa: F401  (enters how plans are shown)
from embark_jax.planner.cost.capacities import grow
from embark_jax.planner.cost.model import EmbarkModel, ProgramModel
from embark_jax.planner.cost.phases import Phase, phases
from embark_jax.planner.cost.predict import capacities, predict
from embark_jax.planner.layout.plan import MESH_AXES, Plan
from embark_jax.planner.layout.prediction import Prediction
from embark_jax.planner.layout.storage import Placement, Storage, lay_out
from embark_jax.planner.report.records import plan_record
from embark_jax.planner.request.forced import ForcedPlacement
from embark_jax.planner.request.table_list import (
    TableList,
    load_table_list,
    read_table_list,
)
from embark_jax.planner.request.wire import Wire
from embark_jax.planner.request.workload import Workload
from embark_jax.planner.search.planning import plan, plan_for
from embark_jax.statistics.accesses import Statistics

__all__ = [
    "MESH_AXES",
    "EmbarkModel",
    "ForcedPlacement",
    "Phase",
    "Placement",
    "Plan",
    "Prediction",
    "ProgramModel",
    "Statistics",
    "Storage",
    "TableList",
    "Wire",
    "Workload",
    "capacities",
    "grow",
    "lay_out",
    "load_table_list",
    "phases",
    "plan",
    "plan_for",
    "plan_record",
    "predict",
    "read_table_list",
]
