"""Decides where every piece of every table lives. Needs no JAX and no device."""

from embark_jax.planner.capacities import capacities, grow
from embark_jax.planner.greedy import ForcedPlacement, plan
from embark_jax.planner.plan import MESH_AXES, Plan
from embark_jax.planner.storage import Placement, Storage, lay_out

__all__ = [
    "MESH_AXES",
    "ForcedPlacement",
    "Placement",
    "Plan",
    "Storage",
    "capacities",
    "grow",
    "lay_out",
    "plan",
]
