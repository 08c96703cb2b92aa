"""Simulates when each device of a fleet does what in a train step. Needs no JAX."""

from embark_jax.simulator.simulation import (
    Job,
    Simulation,
    job_of_list,
    report,
    simulate_hot_batches,
    simulate_program,
)
from embark_jax.simulator.timeline import (
    Task,
    Timeline,
    chrome_trace,
    schedule,
    serial,
)

__all__ = [
    "Job",
    "Simulation",
    "Task",
    "Timeline",
    "chrome_trace",
    "job_of_list",
    "report",
    "schedule",
    "serial",
    "simulate_hot_batches",
    "simulate_program",
]
