"""Checkpoints, written as arrays lie on the devices, and logical for every reader.

README.md beside this file describes the format.
"""

from embark_jax.checkpoint.checkpointer import Checkpointer as Checkpointer
from embark_jax.checkpoint.errors import CheckpointError as CheckpointError
