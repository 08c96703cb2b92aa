"""Gives every shard an owner: where the next table costs least, all else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from embark_jax.planner.candidates import Candidate
from embark_jax.planner.ledger import Ledger
from embark_jax.planner.menu import Menu

GREEDY_POWER = 8
"""Of the means of loads that tables are first placed by."""

LEAST_LOAD = 1e-9
"""Of any kind: what is left below it when tables are removed is rounding."""


class Offer(NamedTuple):
    """Of each candidate of a menu.

    Attributes:
      menu: what there is.
      costs: ``[candidates]`` by how much the smooth cost grows.
      devices: ``[candidates, positions]`` the device of each position.
    """

    menu: Menu
    costs: np.ndarray
    devices: np.ndarray

    def best(self) -> tuple[Candidate, np.ndarray]:
        """The candidate that costs least, with the owners of its shards."""
        c = int(np.argmin(self.costs))
        return self.menu.candidates[c], self.devices[c][self.menu.positions[c]]


class Placing:
    """Tables with the owners of their shards, and the account of what they cost.

    A step takes as long as the fullest device of each load, but that alone says little
    about what the next shard should do: most places raise no maximum. Tables are placed
    by a *smooth* cost, in which the mean of a power of the loads stands for the
    maximum: ``mean(load ** power) ** (1 / power)``. With power 1 that is the cost of
    loads that are spread evenly, as the bound takes them to be; high powers come near
    the maximum.

    Attributes:
      candidates, owners: of each table; ``owners[i][j * column_shards + k]``.
      ledger: the account.
      ms_per_byte: what memory is taken to cost.
      prices: ``[3, storages]`` ms with that of a piece, a place for an id and a row.
      dice: for the order in which tables are tried.
    """

    def __init__(self, empty: Ledger, ms_per_byte: float, seed: int = 0):
        """
        Args:
          empty: an account without entries.
          ms_per_byte: what memory is taken to cost, so that it is kept even.
        """
        self._empty = empty
        self.ledger = empty.copy()
        self.candidates: list[Candidate] = []
        self.owners: list[np.ndarray] = []
        self.dice = np.random.default_rng(seed)
        self.set_price(ms_per_byte)

    def set_price(self, ms_per_byte: float) -> None:
        """Of memory from now on: of what is held, and allocated in the update."""
        ledger, self.ms_per_byte = self.ledger, ms_per_byte
        place_bytes = ledger.id_bytes + ledger.place_bytes
        bytes_each = np.stack([ledger.piece_bytes, place_bytes, ledger.row_bytes])
        times = np.stack([ledger.piece_ms, ledger.id_ms, np.zeros_like(ledger.id_ms)])
        self.prices = times + ms_per_byte * bytes_each
        node_ms = ms_per_byte * ledger.node_piece_bytes
        self._node_prices = ledger.node_piece_ms + node_ms

    def place(
        self, menus: Sequence[Menu], forced: Sequence[tuple[int, ...] | None]
    ) -> None:
        """Places all tables, those with forced owners first, then those with most
        shards for a node, then the largest shards.

        Args:
          menus: of each table, with the one candidate that it takes.
          forced: the owners of its shards, or None.
        """
        self.candidates = [menu.candidates[0] for menu in menus]
        self.owners = [np.zeros(0, int)] * len(menus)
        for i, owners in enumerate(forced):
            if owners is not None:
                self.put(i, self.candidates[i], np.array(owners, int))
        together = [
            len(c.rows) if c.shape.storage.hierarchical else 0 for c in self.candidates
        ]
        sizes = {menu: self._size(menu) for menu in dict.fromkeys(menus)}
        for i in sorted(
            range(len(menus)), key=lambda i: (-together[i], -sizes[menus[i]], i)
        ):
            if forced[i] is None:
                self.put(i, *self.offer(menus[i], GREEDY_POWER).best())

    def put(self, i: int, candidate: Candidate, owners: np.ndarray) -> None:
        """Enters table ``i``."""
        self.candidates[i], self.owners[i] = candidate, owners
        self.ledger.add(candidate, owners)

    def take(self, i: int) -> None:
        """Removes table ``i``."""
        self.ledger.add(self.candidates[i], self.owners[i], times=-1)

    def entries(self) -> list[tuple[Candidate, np.ndarray]]:
        """All tables with their owners."""
        return list(zip(self.candidates, self.owners, strict=True))

    def enter(self, entries: Sequence[tuple[Candidate, np.ndarray]]) -> None:
        """Replaces all by these ``entries``, in an account without rounding errors of
        what was removed."""
        self.ledger = self._empty.copy()
        for i, (candidate, owners) in enumerate(entries):
            self.put(i, candidate, owners)

    def smooth_cost(self, power: int) -> float:
        """The step's time, and memory at its price, with means of powers of the loads
        in place of their maxima."""
        ledger = self.ledger
        used = np.flatnonzero(ledger.tables)
        ids = ledger.padded_ids(ledger.certain[used], ledger.expected[used])
        loads = np.stack([ledger.pieces[used], ids, ledger.rows[used]])
        return float(
            (self.prices[:, used] * _norm(loads, power)).sum()
            + self._node_prices[used] @ _norm(ledger.node_pieces[used], power)
            + _norm(ledger.owner_ms, power)
            + ledger.fixed_ms[used].sum()
            + ledger.everywhere_ms
            + self.ms_per_byte * ledger.everywhere_bytes
        )

    def offer(self, menu: Menu, power: int) -> Offer:
        """Where the shards of a table would lie, for each of its candidates: the larger
        on devices where they cost less, each on another as far as they go."""
        loads, prices = self._loads(menu), self._prices(menu)
        before = self._kinds(loads)
        highest = self._kinds(loads + menu.largest[:, :, None])
        scale = np.maximum(highest.max(axis=2, keepdims=True), LEAST_LOAD)
        before_powers = _power(before / scale, power)
        rises = _power(highest / scale, power) - before_powers
        prices = prices * scale[:, :, 0]
        scores = np.einsum("kc,kcd->cd", prices, rises)
        devices = np.argsort(scores, axis=1, kind="stable")
        costs = self._everywhere(menu)
        staged = np.flatnonzero(menu.staged)
        if len(staged):
            costs[staged], devices[staged] = self._on_nodes(
                menu, staged, scores[staged], costs[staged], power
            )
        each = np.arange(len(costs))[:, None]
        after = self._kinds(loads[:, each, devices] + menu.loads) / scale
        growth = _root(_power(after, power), power) - _root(before_powers, power)
        return Offer(menu, costs + (prices * growth).sum(axis=0), devices)

    def least_costs(self, menu: Menu) -> np.ndarray:
        """``[candidates]`` by how much the cost of maxima grows at least: by an even
        share of the loads, or by what the largest shard lies above all others."""
        above = self._kinds(menu.largest) - self._kinds(self._loads(menu)).max(axis=2)
        share = self._kinds(menu.loads).mean(axis=2)
        more = (self._prices(menu) * np.maximum(share, above)).sum(axis=0)
        of_nodes = self._node_prices[menu.storages] * menu.node_pieces.mean(axis=1)
        return self._everywhere(menu) + more + of_nodes

    def _on_nodes(
        self,
        menu: Menu,
        staged: np.ndarray,
        scores: np.ndarray,
        costs: np.ndarray,
        power: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """``offer`` for candidates ``staged``, of which ``scores`` are of devices:
        costs with those of nodes, and devices node by node."""
        s, pieces = menu.storages[staged], menu.node_pieces[staged]
        held = self.ledger.node_pieces[s]
        largest = pieces.max(axis=1, keepdims=True)
        scale = np.maximum((held + largest).max(axis=1, keepdims=True), LEAST_LOAD)
        before = _power(held / scale, power)
        prices = self._node_prices[s] * scale[:, 0]
        of_nodes = scores.reshape(len(s), -1, self.ledger.gpus_per_node)
        inside = np.argsort(of_nodes, axis=2, kind="stable")
        best = np.take_along_axis(of_nodes, inside, axis=2)
        node_scores = np.einsum("cng,cg->cn", best, menu.in_node[staged])
        rises = _power((held + largest) / scale, power) - before
        node_scores += prices[:, None] * rises
        nodes = np.argsort(node_scores, axis=1, kind="stable")
        each = np.arange(len(s))[:, None]
        after = _power((held[each, nodes] + pieces) / scale, power)
        costs = costs + prices * (_root(after, power) - _root(before, power))
        devices = inside[each, nodes] + nodes[:, :, None] * of_nodes.shape[2]
        return costs, devices.reshape(len(s), -1)

    def _everywhere(self, menu: Menu) -> np.ndarray:
        """``[candidates]`` what they cost wherever their shards lie."""
        ledger, s = self.ledger, menu.storages
        opened_ms = ledger.fixed_ms[s] * (ledger.tables[s] == 0)
        memory_ms = self.ms_per_byte * menu.everywhere_bytes
        return menu.everywhere_ms + opened_ms + memory_ms

    def _loads(self, menu: Menu) -> np.ndarray:
        """``[5, candidates, devices]`` what devices have where each would be added."""
        ledger, s = self.ledger, menu.storages
        loads = np.empty((5, len(s), ledger.devices))
        np.take(ledger.loads, s, axis=1, out=loads[:4])
        loads[4] = ledger.owner_ms
        return loads

    def _prices(self, menu: Menu) -> np.ndarray:
        """``[kinds, candidates]`` of ``_kinds``."""
        piece, place, row = self.prices[:, menu.storages]
        kinds = [piece, place, np.ones_like(piece)]
        return np.stack([*kinds, row] if self.ms_per_byte else kinds)

    def _kinds(self, loads: np.ndarray) -> np.ndarray:
        """``[kinds, ...]`` pieces, places for ids, owner's time and, if memory has a
        price, rows of a menu's ``loads``."""
        pieces, certain, expected, rows, owner_ms = loads
        kinds = np.empty((4 if self.ms_per_byte else 3, *pieces.shape))
        kinds[0], kinds[2] = pieces, owner_ms
        kinds[1] = self.ledger.padded_ids(certain, expected)
        if self.ms_per_byte:
            kinds[3] = rows
        return kinds

    def _size(self, menu: Menu) -> float:
        """How much the largest shard of the one candidate weighs."""
        return float((self._prices(menu) * self._kinds(menu.largest)).sum())


def _power(values: np.ndarray, power: int) -> np.ndarray:
    """``values ** power``, by squares: powers are 1, 2, 4, 8 and so on."""
    powers = values.copy()
    while power > 1:
        np.square(powers, out=powers)
        power //= 2
    return powers


def _root(powers: np.ndarray, power: int) -> np.ndarray:
    """Of the mean of powers over the last axis."""
    return (np.add.reduce(powers, axis=-1) / powers.shape[-1]) ** (1 / power)


def _norm(loads: np.ndarray, power: int) -> np.ndarray:
    """The mean of ``loads`` over the last axis, of which high powers weigh large ones
    more."""
    scale = np.maximum(loads.max(axis=-1), LEAST_LOAD)
    return scale * _root(_power(loads / scale[..., None], power), power)
