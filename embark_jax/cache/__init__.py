"""Tables with fewer slots than rows: cached ones and dynamic ones.

- ``key_index``, ``directory``, ``resolving``, ``swaps``: on the devices, which key lies
  in which slot, and how rows move.
- ``stored_rows``, ``row_store``, ``row_log``: on the host, rows that have no slot, and
  what checkpoints see of them.
"""
