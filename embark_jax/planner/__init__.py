"""Decides where every piece of every table lives. Needs no JAX and no device."""

from embark_jax.planner.candidates import ForcedPlacement
from embark_jax.planner.capacities import capacities, grow
from embark_jax.planner.plan import MESH_AXES, Plan
from embark_jax.planner.prediction import Prediction
from embark_jax.planner.records import plan_record, read_tables
from embark_jax.planner.search import plan
from embark_jax.planner.storage import Placement, Storage, lay_out

__all__ = [
    "MESH_AXES",
    "ForcedPlacement",
    "Placement",
    "Plan",
    "Prediction",
    "Storage",
    "capacities",
    "grow",
    "lay_out",
    "plan",
    "plan_record",
    "read_tables",
]
