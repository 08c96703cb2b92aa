"""Cached and dynamic tables: more rows than slots on the devices.

- **key index** (``key_index``): says in which slot a row lies; part of the train state.
- **programs** (``programs``): look up the rows of a batch, swap rows in and out.
- **row store** (``row_store``): host memory or a scratch file with room for all rows.
- **stored rows** (``stored_rows``): moves rows between devices and their store.
- **key numbers** (``key_numbers``): the row of each key of a dynamic table.
"""
