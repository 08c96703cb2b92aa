"""Training: batches change the state, in order, each as a whole or not at all.

- ``trainer``: applies batches, replays those that overflow a buffer.
- ``step``, ``gradients``, ``state``: one step as one program, and what it changes.
- ``programs``, ``overlap``, ``cached``: the programs of a trainer, with the route of
  the next batch, and with tables in slots.
- ``placing``, ``feeding``, ``in_flight``: batches to devices, and steps under way.
- ``flax_model``, ``function_model``, ``losses``: models and losses as the step sees
  them.
- ``optimizers``, ``dense_optimizers``, ``row_optimizers``, ``schedules``: by config.
"""
