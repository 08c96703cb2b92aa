"""Training: batches change the state, in order, each as a whole or not at all.

- ``trainer``: the interface; ``placing`` brings batches, ``in_flight`` applies them in
  order and replays those that overflow a buffer, ``scoring`` scores.
- ``engine``: the state, and the programs that change it.
- ``step``, ``state``: one step as one program, and what it changes.
- ``router``: who makes the routes of a batch, and when.
- ``outcome``: what became of a step.
- ``step_model``, ``losses``, ``optimizers``: models, losses and optimizers of a step.
"""
