"""Statistics: how often the rows of tables are looked up.

- **skew**: how the ids of a table are distributed over its rows: a power law (Zipf), or
  a histogram of a sample of the data.
- **histogram**: how many rows were seen how often, and which were most frequent.
- **agreement**: how sure a sample is of that.
- **hot_rows**: the most frequent rows of all tables for which there is memory.
- **recurrence**: how many of a hundred batches a row is in.
- **accesses**: the file of ``embark data stats``, with a histogram of each table.
"""
