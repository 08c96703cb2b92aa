"""Runs: a config becomes a trained model in a folder.

``training.py`` shows a run, top to bottom. In the order of reading:

- ``training``: one run, from config to test metrics; ``callbacks``: what it does
  besides training steps.
- ``experiment``: the objects of a run, made from its config; ``dataset`` reads its
  data, ``accesses`` counts their ids, ``planning`` plans its tables, be the data there
  or not.
- ``initial``: a run that starts from another.
- ``evaluation``: metrics over a split of the data; ``early_stopping``: what happens
  when the validation set no longer improves.
- ``folder``, ``figures``, ``logs``, ``profile``: what a run writes, and where it goes.
- ``saved``, ``loading``: a run that is over, as arrays in host memory, or as a trainer.
- ``search``: several runs of one config, whose values Optuna chooses.
"""
