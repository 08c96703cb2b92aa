"""Simulates when each device of a fleet does what in a train step. Needs no JAX."""

from embark_jax.planner.request.dense import DenseNetwork, dlrm, dlrm_dcnv2
from embark_jax.simulator.job import Job, job_of_list, network_of
from embark_jax.simulator.report import report
from embark_jax.simulator.simulation import (
    Simulation,
    simulate_hot_batches,
    simulate_program,
)
from embark_jax.simulator.timeline import Task, Timeline, schedule, serial
from embark_jax.simulator.trace import chrome_trace

__all__ = [
    "DenseNetwork",
    "Job",
    "Simulation",
    "Task",
    "Timeline",
    "chrome_trace",
    "dlrm",
    "dlrm_dcnv2",
    "job_of_list",
    "network_of",
    "report",
    "schedule",
    "serial",
    "simulate_hot_batches",
    "simulate_program",
]
