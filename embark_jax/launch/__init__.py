"""Processes of a run: how they start, talk, fail and stop together.

- ``process_group``: who takes part, by Slurm, MPI, Kubernetes or by hand.
- ``supervisor``, ``worker``: each process has one that watches over it.
- ``rendezvous``, ``messages``, ``token``: how supervisors meet, and trust each other.
- ``processes``, ``agreement``: how the workers join, and what they tell each other.
- ``stopping``: signals that end a run with a checkpoint.
"""
