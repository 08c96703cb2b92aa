"""The contract of planner, embeddings, training and export; it needs no JAX.

- **table**, **feature** (``tables``): what a model looks up.
- **fleet** (``fleet``): the machines, with their figures.
- **options** (``options``): the values that each choice may take.
- **placement** (``storage``): cluster, splits, owners and exchange of one table.
- **storage** (``storage``, ``layout``): one array that holds all shards of one cluster
  and width, on all devices; a record says where each shard lies.
- **wire**, **traffic**: formats and bytes of what a step moves.
- **plan** (``plan``): placements of all tables, and capacities of their exchanges, as
  data; with the **prediction** of its cost, if the planner made it.
"""
