"""Statistics: how often the rows of tables are looked up.

- **skew**: how the ids of a table are distributed over its rows: a power law (Zipf), or
  a histogram of a sample of the data.
- **histogram**: how many rows were seen how often, and which were most frequent.
- **hot_rows**: the most frequent rows of all tables for which there is memory.
- **misses**: how many rows of a batch are not in the slots of a cached table.
- **accesses**: the file of ``embark data stats``, with a histogram of each table.
"""
