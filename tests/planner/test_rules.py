"""No plan breaks a rule of the bound: random placements, rules of any size."""

import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.placing import Placing
from embark_jax.planner.rules import IDS, OWNER, Chance, LargeShards
from embark_jax.planner.search import Search
from embark_jax.planner.workload import Workload
from embark_jax.tables import FeatureSpec, TableSpec

DEVICES = 4


def random_placing(seed: int):
    """A search, and a placement of all its tables by lot."""
    rng = np.random.default_rng(seed)
    tables = [TableSpec(f"t{i}", int(rng.integers(50, 10**5)), 16) for i in range(6)]
    features = [FeatureSpec(t.name, hotness=int(rng.integers(1, 4))) for t in tables]
    batch = DEVICES * int(2 ** rng.integers(2, 11))
    workload = Workload(fleet.Fleet(fleet.dgx_h100().device, 1, DEVICES), batch, 1.05)
    search = Search(tables, features, {}, workload, ProgramModel(workload))
    placing = Placing(search.empty, 0.0)
    placing.candidates = [options[0] for options in search.options]
    placing.owners = [np.zeros(0, int)] * len(tables)
    for i, options in enumerate(search.options):
        candidate = options[rng.integers(len(options))]
        shards = 0 if candidate.replicated else candidate.shape.shards
        placing.put(i, candidate, rng.integers(0, DEVICES, shards))
    return search, placing


def solution(search, placing, variable: float) -> np.ndarray:
    """The placement as values of the program's variables, and of one rule's."""
    program, ledger = search.program, placing.ledger
    values = np.zeros(program.of_rules + 1)
    at = {candidate: c for c, candidate in enumerate(program.candidates)}
    for candidate in placing.candidates:
        values[program.each[at[candidate]]] += 1
    levels = [ledger.pieces.max(axis=1), ledger.capacity, ledger.rows.max(axis=1)]
    for kind, level in enumerate(levels):
        own = program.level[kind * len(level) : (kind + 1) * len(level)]
        values[own] = level / program.unit[kind]
    values[program.level[-1]] = ledger.owner_ms.max()
    values[-1] = variable
    return values


def holds(rule, search, placing, variable: float) -> bool:
    program = search.program
    program.rules = [rule]
    left = rule.constraints(program, program.of_rules)
    return bool((left @ solution(search, placing, variable) >= -1e-9).all())


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_breaks_a_rule(seed):
    search, placing = random_placing(seed)
    program, ledger = search.program, placing.ledger
    storages = len(ledger.storages)
    for s, storage in enumerate(ledger.storages):
        if storage.cluster == "dp":
            continue
        load = IDS * storages + s
        # Slack and chance are equal at 576 ids.
        for ids in (5, 40, 300, 520, 575, 600, 900, 5000):
            rule = Chance(load, ids / program.unit[IDS])
            assert any(holds(rule, search, placing, more) for more in (0, 1)), ids
        for ids in (5.0, 40.0, 300.0, 5000.0):
            rule = LargeShards(IDS, load, ids / program.unit[IDS])
            fit = np.floor(ledger.capacity[s] / ids * (1 + 1e-9))
            assert holds(rule, search, placing, fit), ids
    top_ms = float(ledger.owner_ms.max())
    for share in (0.2, 0.5, 1.0):
        rule = LargeShards(OWNER, program.loads - 1, share * top_ms)
        assert holds(rule, search, placing, np.floor(1 / share * (1 + 1e-9)))
