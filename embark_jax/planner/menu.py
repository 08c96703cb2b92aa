"""What a table may become, as arrays, so that all its candidates are tried at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger


class Menu:
    """Candidates of a table by *positions*: devices ordered by how well the next shard
    would lie there. Large shards come first. Shards of a column that are added up
    inside nodes lie on the first positions of as few nodes as go, the columns on one
    node after the other.

    Attributes:
      candidates: so many.
      storages: ``[candidates]`` which each adds to.
      staged: ``[candidates]`` whether positions are those of nodes.
      positions: of each candidate, that of shard (j, k) at ``j * column_shards + k``.
      loads: ``[5, candidates, positions]`` pieces, certain and expected ids, rows, and
        the owner's time.
      largest: ``[5, candidates]`` the most of any position.
      node_pieces: ``[candidates, nodes]`` those of nodes, in their order.
      in_node: ``[candidates, GPUs of a node]`` positions of a first node that are used.
      everywhere_ms, everywhere_bytes: ``[candidates]`` of every device alike.
    """

    def __init__(self, candidates: Sequence[Candidate], ledger: Ledger):
        self.candidates = tuple(candidates)
        number, devices = len(candidates), ledger.devices
        gpus = ledger.gpus_per_node
        self.storages = np.array([ledger.index(c) for c in candidates])
        self.staged = np.array([c.shape.storage.hierarchical for c in candidates])
        self.everywhere_ms = np.array([c.everywhere_ms for c in candidates])
        self.everywhere_bytes = np.array([c.everywhere_bytes for c in candidates])
        self.loads = np.zeros((5, number, devices))
        self.node_pieces = np.zeros((number, devices // gpus))
        self.in_node = np.zeros((number, gpus))
        self.positions: list[np.ndarray] = []
        for c, candidate in enumerate(candidates):
            rows, columns = len(candidate.rows), candidate.shape.column_shards
            ids = candidate.certain + candidate.expected
            largest_first = np.argsort(-ids, kind="stable")
            positions = np.zeros((rows, columns), int)
            positions[largest_first] = (
                _on_few_nodes(rows, columns, gpus, devices // gpus)
                if self.staged[c]
                else np.arange(rows * columns).reshape(rows, columns) % devices
            )
            self.positions.append(positions.reshape(-1))
            for load, of_row in zip(self.loads[:, c], candidate.loads, strict=True):
                np.add.at(load, positions, of_row[:, None])
            if self.staged[c]:
                self.node_pieces[c] = ledger.of_nodes(candidate, self.positions[c])
                self.in_node[c, :rows] = 1
        self.largest = self.loads.max(axis=2)

    def only(self, chosen: np.ndarray) -> Menu:
        """Of these candidates alone."""
        other = object.__new__(Menu)
        other.candidates = tuple(self.candidates[c] for c in chosen)
        other.positions = [self.positions[c] for c in chosen]
        other.loads = self.loads[:, chosen]
        other.largest = self.largest[:, chosen]
        for name in (
            *("storages", "staged", "node_pieces", "in_node"),
            *("everywhere_ms", "everywhere_bytes"),
        ):
            setattr(other, name, getattr(self, name)[chosen])
        return other


def _on_few_nodes(rows: int, columns: int, gpus: int, nodes: int) -> np.ndarray:
    """``[rows, columns]`` positions of shards, each column on as few nodes as go."""
    of_column = min(-(-rows // gpus), nodes)
    row, column = np.arange(rows)[:, None], np.arange(columns)
    begun, node = np.divmod(column * of_column + row % of_column, nodes)
    return node * gpus + (begun * min(rows, gpus) + row // of_column) % gpus
