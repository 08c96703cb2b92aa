"""Decides where every piece of every table lives. Needs no JAX and no device."""

from embark_jax.planner.access import Statistics
from embark_jax.planner.candidates import ForcedPlacement
from embark_jax.planner.capacities import capacities, grow
from embark_jax.planner.cost import EmbarkModel, ProgramModel
from embark_jax.planner.phases import Phase, phases
from embark_jax.planner.plan import MESH_AXES, Plan
from embark_jax.planner.planning import plan, plan_for
from embark_jax.planner.predict import predict
from embark_jax.planner.prediction import Prediction
from embark_jax.planner.records import plan_record
from embark_jax.planner.storage import Placement, Storage, lay_out
from embark_jax.planner.table_list import TableList, load_table_list, read_table_list
from embark_jax.planner.wire import Wire
from embark_jax.planner.workload import Workload

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
