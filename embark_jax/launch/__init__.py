"""Processes of a run: how they meet, what they tell each other, how they stop.

- ``processes``: joins a process to the others; one that fails ends at once, and so
  the others do.
- ``agreement``: what processes tell each other outside of training.
- ``stopping``: signals that end a run with a checkpoint.
- ``one_host``: starts several processes on this machine, and starts them again.

Across hosts, the scheduler starts processes, and starts them again.
"""
