"""Training: batches change the state, in order, each as a whole or not at all.

- ``trainer``: batches are put on the devices, started, finished or started again, and
  scored; ``results``: what became of a step.
- ``step``, ``gradients``, ``cuts``, ``state``: one step as one program, its
  micro-batches, and what it changes.
- ``cached_rows``: rows of cached tables come into slots before their step.
- ``absent``, ``collectives``: the step compiled for devices that are not here, and what
  its collectives move.
- ``step_model``, ``losses``: models and losses of a step.
"""
