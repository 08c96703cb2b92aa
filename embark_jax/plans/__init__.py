"""The layout of a plan, the contract with ``embedding/``: the words of this folder.

- **cluster**: DP replicates a table; RB pools at the owner, UB at the requester.
- **placement**: cluster, splits, owners and exchange of one table.
- **storage**: one array that holds all shards of one cluster and width.
- **plan**: the placements of all tables, and capacities of their exchanges, as data.
- **prediction**: what the planner expects a plan to cost.
"""
