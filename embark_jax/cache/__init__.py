"""Tables with fewer slots than rows: cached ones and dynamic ones.

- ``cached_rows``: the router of such tables: slots, indexes and stores in agreement.
- ``key_index``, ``programs``: on the devices, which key lies in which slot, and swaps.
- ``table_stores``, ``stored_rows``, ``row_store``: on the host, all rows.
- ``numbering``, ``key_numbers``, ``growth``: keys of dynamic tables.
"""
