"""No plan breaks a rule of the bound: random placements, rules of any size."""

import itertools

import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner.cost import ProgramModel
from embark_jax.planner.placing import Placing
from embark_jax.planner.rules import IDS, OWNER, Chance, LargeShards, MixedShards
from embark_jax.planner.search import Search
from embark_jax.planner.workload import Workload
from embark_jax.tables import FeatureSpec, TableSpec

DEVICES = 4


def make_search(seed: int, kinds: int, copies: int, most_ids: int):
    """A search for copies of tables by lot, and its dice."""
    rng = np.random.default_rng(seed)
    tables, features = [], []
    for kind in range(kinds):
        rows, hotness = int(rng.integers(50, 10**5)), int(rng.integers(1, most_ids))
        for copy in range(copies):
            tables.append(TableSpec(f"t{kind}-{copy}", rows, 16))
            features.append(FeatureSpec(f"t{kind}-{copy}", hotness=hotness))
    batch = DEVICES * int(2 ** rng.integers(2, 11))
    workload = Workload(fleet.Fleet(fleet.dgx_h100().device, 1, DEVICES), batch, 1.05)
    search = Search(tables, features, {}, workload, ProgramModel(workload))
    placing = Placing(search.empty, 0.0)
    placing.candidates = [options[0] for options in search.options]
    placing.owners = [np.zeros(0, int)] * len(tables)
    return search, placing, rng


def random_placing(seed: int):
    """A search, and a placement of all its tables by lot."""
    search, placing, rng = make_search(seed, 6, 1, most_ids=4)
    for i, options in enumerate(search.options):
        candidate = options[rng.integers(len(options))]
        shards = 0 if candidate.replicated else candidate.shape.shards
        placing.put(i, candidate, rng.integers(0, DEVICES, shards))
    return search, placing


def even_placing(seed: int):
    """A search, and a placement that gives every device the same whole tables."""
    search, placing, rng = make_search(seed, 4, DEVICES, most_ids=12)
    for i, options in enumerate(search.options):
        (whole,) = (
            option
            for option in options
            if (option.shape.cluster, option.shape.shards) == ("rb", 1)
        )
        placing.put(i, whole, np.array([i % DEVICES]))
    return search, placing, rng


def solution(search, placing, *variables: float) -> np.ndarray:
    """The placement as values of the program's variables, and of one rule's."""
    program, ledger = search.program, placing.ledger
    values = np.zeros(program.of_rules + len(variables))
    values[program.used] = ledger.tables > 0
    at = {candidate: c for c, candidate in enumerate(program.candidates)}
    for candidate in placing.candidates:
        values[program.each[at[candidate]]] += 1
    levels = [ledger.pieces.max(axis=1), ledger.capacity, ledger.rows.max(axis=1)]
    for kind, level in enumerate(levels):
        own = program.level[kind * len(level) : (kind + 1) * len(level)]
        values[own] = level / program.unit[kind]
    values[program.level[-1]] = ledger.owner_ms.max()
    values[program.of_rules :] = variables
    return values


def holds(rule, search, placing, *variables: float) -> bool:
    program = search.program
    program.rules = [rule]
    left = rule.constraints(program, program.of_rules)
    return bool((left @ solution(search, placing, *variables) >= -1e-9).all())


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


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_breaks_a_rule_for_large_shards_among_others(seed):
    search, placing, rng = even_placing(seed)
    program, ledger = search.program, placing.ledger
    (s,) = np.flatnonzero(ledger.tables)
    load = IDS * len(ledger.storages) + s
    whole = set(placing.candidates)
    sizes = sorted(
        float(program.per_shard[c][IDS][0] / program.unit[IDS])
        for c, candidate in enumerate(program.candidates)
        if candidate in whole
    )
    sizes.append(9 * sizes[-1])  # more than any device has
    for size, large_size in itertools.combinations_with_replacement(sizes, 2):
        for pieces in (2, 3, 4, 5):
            extra = float(rng.uniform(0, pieces - 1))
            rule = MixedShards(s, load, pieces, size, large_size, extra)
            ways = itertools.product((0, 1), repeat=2)
            assert any(holds(rule, search, placing, *way) for way in ways), rule
