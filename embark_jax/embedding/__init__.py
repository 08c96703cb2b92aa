"""Sharded embedding tables: from the ids of a batch to updated rows.

- ``collection``: all tables of a plan on a mesh; what others use.
- ``device_batch``: a batch on the devices.
- ``arrays``: rows, optimizer state and routes, as types.
- ``bags``, ``indexing``: masks of bad ids, ids to owners and slots.
- ``data_parallel``, ``reduction``, ``unique``: the clusters DP, RB and UB, of which
  ``clusters`` is the registry.
- ``exchange``, ``wire``: the collectives, and their formats.
- ``rules``, ``row_updates``: the update of touched rows.
- ``initial``, ``logical``: first values of rows, and rows by number.
- ``reference``: the unsharded oracle in NumPy.

``README.md`` in this folder follows one id all the way.
"""
