"""Runs: a config becomes a trained model in a folder.

``training.py`` shows a run, top to bottom. In the order of reading:

- ``training``: one run, from config to test metrics; ``loop`` has its steps.
- ``experiment``: the objects of a run, made from its config; ``dataset`` reads its
  data, ``accesses`` counts their ids, ``planning`` plans its tables, be the data there
  or not.
- ``initial``: a run that starts from another; ``windows``: data in time windows.
- ``evaluation``: metrics over a split of the data.
- ``early_stopping``: what happens when the validation set no longer improves.
- ``window``, ``logs``, ``trackers``, ``page``: the figures of the last steps, and where
  they go: to disk, to services, to the report of the run.
- ``history``: the configs of a run, and what may change when it is resumed.
- ``loading``, ``saved``: a run that is over, as a trainer, or as arrays in host memory.
- ``search``: several runs of one config, whose values Optuna chooses.
"""
