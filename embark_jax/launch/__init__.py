"""Processes of a run: how they start, talk, fail and stop together.

- ``process_group``: who takes part, by Slurm, MPI, Kubernetes or by hand.
- ``supervisor``, ``worker``: each process has one that watches over it.
- ``rendezvous``, ``messages``, ``token``: how supervisors meet, and trust each other.
- ``processes``, ``agreement``: what the workers tell each other once JAX runs.
- ``stopping``: signals that end a run with a checkpoint.
"""
