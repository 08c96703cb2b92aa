"""Simulates when each device of a fleet does what in a train step. Needs no JAX."""

from embark_jax.simulator.simulation import Simulation as Simulation
from embark_jax.simulator.simulation import mean_step_ms as mean_step_ms
from embark_jax.simulator.simulation import report as report
from embark_jax.simulator.simulation import simulate_hot_batches as simulate_hot_batches
from embark_jax.simulator.simulation import simulate_program as simulate_program
from embark_jax.simulator.timeline import Task as Task
from embark_jax.simulator.timeline import Timeline as Timeline
from embark_jax.simulator.timeline import chrome_trace as chrome_trace
from embark_jax.simulator.timeline import schedule as schedule
from embark_jax.simulator.timeline import serial as serial
