"""Tables that a report shows on one line."""

from __future__ import annotations

from collections.abc import Sequence

from embark_jax.plans.storage import Placement
from embark_jax.plans.tables import FeatureSpec


def alike(
    placements: Sequence[Placement], features: Sequence[FeatureSpec]
) -> list[list[Placement]]:
    """Groups placements of tables that are equal in size, ids, split and reason."""
    ids: dict[str, int] = {}
    for feature in features:
        ids[feature.table] = ids.get(feature.table, 0) + feature.hotness
    groups: dict[tuple, list[Placement]] = {}
    for p in placements:
        size = p.table.rows, p.table.dim, ids[p.table.name]
        split = p.cluster, p.row_shards, p.column_shards, p.hot_rows
        groups.setdefault((*size, *split, p.reason), []).append(p)
    return [*groups.values()]
