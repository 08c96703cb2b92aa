"""Training: batches change the state, in order, each as a whole or not at all.

- ``trainer``: the interface.
- ``loop``: batches are placed, started, landed or started again, and scored; what
  became of a step.
- ``step``, ``gradients``, ``cuts``, ``state``: one step as one program, its
  micro-batches, and what it changes.
- ``step_model``, ``losses``: models and losses of a step.
"""
