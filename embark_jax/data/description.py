"""What is known of data that nobody has read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embark_jax.plans.tables import FeatureSpec


@dataclasses.dataclass(frozen=True)
class Description:
    """The properties of a dataset that a plan depends on, without its samples. A
    ``Dataset`` has members of the same names.

    Attributes:
      table_rows: number of rows of each table.
      features: the features.
      dense_features: columns of numbers in each sample.
    """

    table_rows: Mapping[str, int]
    features: Sequence[FeatureSpec]
    dense_features: int
