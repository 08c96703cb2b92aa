"""Local search over shapes: what a table on a fullest device may better become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.placing import Placing

MAX_TRIALS = 3000
LEAST_GAIN = 1e-4
"""Share of the cost that a change must save."""


def polish(
    placing: Placing, options: Sequence[Sequence[Candidate]], movable: Sequence[bool]
) -> None:
    """Changes the shape of one table at a time, always the best change, then exchanges
    shards, until nothing helps or ``MAX_TRIALS`` are used up.

    Args:
      placing: tables with their owners; changed in place.
      options: the candidates of each table; alike tables have the same list.
      movable: whether the shards of each table may move.
    """
    placing.exchange_shards(movable)
    trials = 0
    while trials < MAX_TRIALS:
        best_cost, change = placing.cost() * (1 - LEAST_GAIN), None
        tried = set()
        for i in _on_fullest(placing):
            old, owners = placing.candidates[i], placing.owners[i]
            alike = (id(options[i]), id(old))
            if not movable[i] or alike in tried:
                continue
            tried.add(alike)
            placing.take(i)
            for candidate in options[i]:
                placing.put(i, candidate, placing.best_owners(candidate))
                if (cost := placing.cost()) < best_cost:
                    best_cost, change = cost, (i, candidate, placing.owners[i])
                placing.take(i)
            placing.put(i, old, owners)
            trials += len(options[i])
        if change is None:
            break
        placing.take(change[0])
        placing.put(*change)
        placing.exchange_shards(movable)


def _on_fullest(placing: Placing) -> list[int]:
    """Tables that are replicated, or have a shard on a device that is fullest in
    something."""
    ledger = placing.ledger
    ids = ledger.padded_ids(ledger.certain, ledger.expected)
    full = ledger.owner_ms >= ledger.owner_ms.max()
    full = full | np.zeros_like(ids, bool)
    of_nodes = np.repeat(ledger.node_pieces, ledger.gpus_per_node, axis=1)
    for load in (ledger.pieces, ids, ledger.rows, of_nodes):
        full |= (load >= load.max(axis=1, keepdims=True)) & (load > 0)
    return [
        i
        for i, candidate in enumerate(placing.candidates)
        if candidate.replicated
        or full[ledger.index(candidate), placing.owners[i]].any()
    ]
