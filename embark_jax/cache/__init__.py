"""Tables with fewer slots than rows: cached ones and dynamic ones.

- ``cached_rows``: the router of such tables: slots, indexes and stores in agreement.
- ``key_index``, ``directory``, ``leaving``, ``resolving``, ``swaps``: on the devices,
  which key lies in which slot, and how rows move.
- ``table_stores``, ``stored_rows``, ``row_store``, ``keyed_store``: on the host, rows
  that have no slot.
- ``slots_needed``, ``growth``, ``saved_keys``: the slots of dynamic tables, and their
  keys in checkpoints.
"""
