"""The request: the words of this folder.

- **workload**: the fleet, the batch, and the circumstances of a step.
- **table use**: how the features use one table; tables of equal use are alike. The skew
  of its ids comes from ``embark_jax/statistics``.
- **dense load**: the part of every device's memory that the dense layers take.
- **wire**: the formats in which rows and gradients travel.
- **forced placement**: the parts of a table's placement that the user fixes.
"""
