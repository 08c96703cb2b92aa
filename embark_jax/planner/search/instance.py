"""One request as the search sees it: groups of alike tables and their candidates."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from embark_jax.planner.cost.candidates import Load
from embark_jax.planner.cost.objective import Objective
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.workload import TableUse, Workload, table_uses
from embark_jax.planner.search.layouts import worthwhile_candidates
from embark_jax.planner.search.params import LARGE_MODEL
from embark_jax.plans.forced import FREE, ForcedPlacement
from embark_jax.plans.tables import FeatureSpec, TableSpec


class Instance:
    """The search's form of one request.

    Attributes:
      workload, objective: circumstances of the plan, and what prices it.
      memory: the memory of the objective.
      tables: tables of the model.
      group: ``[tables]`` number of the group of alike tables: equal in use, and in what
        is forced.
      counts: ``[groups]`` number of tables.
      uses, forced: ``[groups]`` use of each table, and what is forced.
      owners: ``[groups]`` forced owners, or None.
      candidates: candidates of all groups, group by group; a candidate's ``table`` is
        a group.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        forced: Mapping[str, ForcedPlacement],
        workload: Workload,
    ):
        """
        Args:
          tables, features, forced: as for ``plan``.
          workload: circumstances of the plan.
        """
        forces = [forced.get(table.name, FREE) for table in tables]
        for table, force in zip(tables, forces, strict=True):
            skew = workload.statistics.skew(table)
            if force.hot_rows and skew is not None and not skew.in_order:
                raise ValueError(
                    f"table {table.name!r}: hot_rows is {force.hot_rows}, but by the "
                    "statistics its first rows are not the most frequent ones; number "
                    "its rows by frequency (embark_jax.by_frequency; the vocabularies "
                    "of `embark data prepare` are), or leave hot_rows out"
                )
        numbers: dict[tuple[TableUse, ForcedPlacement], int] = {}
        requests = zip(table_uses(tables, features, workload), forces, strict=True)
        self.group = np.array(
            [numbers.setdefault(each, len(numbers)) for each in requests]
        )
        self.counts = np.bincount(self.group)
        self.uses = [use for use, _ in numbers]
        self.forced = [force for _, force in numbers]
        self.owners = [
            None if force.devices is None else np.array(force.devices, np.int64)
            for force in self.forced
        ]
        self.tables, self.workload = tables, workload
        self.candidates = worthwhile_candidates([*numbers], tables, workload)
        self.objective = Objective(self.candidates.storages, workload)
        self.memory = self.objective.memory

    @property
    def is_large(self) -> bool:
        """Whether it has so many unlike tables that the search tries only the best
        start."""
        return len(self.counts) > LARGE_MODEL

    @functools.cached_property
    def has_stores(self) -> bool:
        """Whether some candidate has rows elsewhere than on devices."""
        return bool((self.candidates.loads[Load.STORE_MS] > 0).any())

    @functools.cached_property
    def shard_bytes(self) -> np.ndarray:
        """``[candidates]`` least bytes of a device that has their largest shard: its
        rows, and what every device holds."""
        candidates = self.candidates
        rows = candidates.reduced(np.maximum, candidates.loads[Load.ROWS])
        row_bytes = self.objective.held_bytes[Peak.ROWS][candidates.storage]
        return row_bytes * rows + candidates.everywhere_bytes

    @functools.cached_property
    def held_bytes(self) -> np.ndarray:
        """``[candidates]`` bytes that they take wherever their shards lie: on every
        device, and of rows in host memory and on disks, which count as the bytes of
        device memory that are as large a share of its limit."""
        candidates = self.candidates
        stored = candidates.reduced(np.add, candidates.loads[Load.STORED_BYTES])
        weights = self.objective.stored_weights[candidates.storage]
        stored_bytes = weights * stored * candidates.column_shards
        return candidates.everywhere_bytes + stored_bytes
