"""Checkpoints, written as arrays lie on the devices, and logical for every reader.

README.md beside this file describes the format.
"""

from embark_jax.train.checkpoint.checkpointer import Checkpointer as Checkpointer
from embark_jax.train.checkpoint.checkpointer import chosen_steps as chosen_steps
from embark_jax.train.checkpoint.errors import CheckpointError as CheckpointError
from embark_jax.train.checkpoint.errors import differences as differences
