"""Sharded embedding tables: from the ids of a batch to updated rows.

- ``collection``: all tables of a plan on a mesh, and the registry of clusters; what
  others use.
- ``batch_ids``: the ids of a batch as matrices.
- ``indexing``, ``keys``: masks of bad ids, ids to owners and slots, or keys.
- ``data_parallel``, ``reduction``, ``unique``: the clusters DP, RB and UB.
- ``exchange``: the collectives.
- ``rules``, ``row_updates``: the update of touched rows.
- ``initial``, ``logical``: first values of rows, and rows by number.

``README.md`` in this folder follows one id all the way.
"""
