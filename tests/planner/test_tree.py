"""Bounds and boxes: no plan breaks a cut, gets lost by a split, or beats its bound."""

import numpy as np
import pytest

from embark_jax import fleet
from embark_jax.planner.box import Box, Solution
from embark_jax.planner.branching import splits
from embark_jax.planner.cost.model import ProgramModel
from embark_jax.planner.cuts import Cuts
from embark_jax.planner.lines import solve
from embark_jax.planner.menu import Menu
from embark_jax.planner.placing import Placing
from embark_jax.planner.program import Program
from embark_jax.planner.search import Search
from embark_jax.planner.tree import Tree
from embark_jax.planner.request.workload import Workload
from embark_jax.tables import FeatureSpec, TableSpec

FLEETS = [(1, 4, "flat"), (2, 2, "hierarchical"), (2, 4, "hierarchical")]
PLANS = 30


def make_search(seed: int, nodes: int, gpus: int, exchange) -> Search:
    """A search for copies of a few tables by lot."""
    rng = np.random.default_rng(seed)
    tables, features = [], []
    for kind in range(4):
        rows, hotness = int(rng.integers(50, 10**5)), int(rng.integers(1, 12))
        for copy in range(int(rng.integers(1, 4))):
            tables.append(TableSpec(f"t{kind}-{copy}", rows, 16))
            features.append(FeatureSpec(f"t{kind}-{copy}", hotness=hotness))
    machines = fleet.dgx_h100(nodes, gpus_per_node=gpus)
    batch = machines.devices * int(2 ** rng.integers(2, 11))
    workload = Workload(machines, batch, 1.05)
    model = ProgramModel(workload)
    return Search(tables, features, {}, workload, model, exchange)


def plans(search: Search, seed: int) -> list[Placing]:
    """Placed greedily with shapes by lot, most of few shapes: so close are good
    plans."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(PLANS):
        placing = Placing(search.empty, 0.0)
        few = int(rng.integers(1, 5))
        menus = [
            Menu([options[int(rng.integers(min(few, len(options))))]], search.empty)
            for options in search.options
        ]
        placing.place(menus, [None] * len(menus))
        found.append(placing)
    return found


def tables_of(program: Program, placing: Placing) -> np.ndarray:
    at = {candidate: c for c, candidate in enumerate(program.candidates)}
    taken = [at[candidate] for candidate in placing.candidates]
    return np.bincount(taken, minlength=len(program.candidates)).astype(float)


def levels_of(program: Program, placing: Placing) -> np.ndarray:
    ledger = placing.ledger
    levels = [
        ledger.pieces.max(axis=1),
        ledger.capacity,
        ledger.rows.max(axis=1),
        ledger.node_pieces.max(axis=1),
        [ledger.owner_ms.max()],
    ]
    return np.concatenate(levels) / program.units


def is_inside(program: Program, box: Box, placing: Placing) -> bool:
    """Whether a plan with these levels, or higher ones, is in the box."""
    tables, levels = tables_of(program, placing), levels_of(program, placing)
    counted = all(
        count.least <= tables[count.candidates].sum() <= count.most
        for count in box.counts
    )
    high = (levels <= box.high * (1 + 1e-9)).all()
    return counted and bool(high) and not tables[~box.live].any()


def is_low(program: Program, box: Box, placing: Placing) -> bool:
    return bool((levels_of(program, placing) >= box.low * (1 - 1e-9)).all())


@pytest.mark.parametrize("where", FLEETS, ids=str)
def test_no_plan_breaks_a_cut(where):
    broken = 0
    for seed in range(6):
        search = make_search(seed, *where)
        program, found = search.program, plans(search, seed)
        cuts, every = Cuts(program), program.whole_box()
        for placing in found:
            # Just what holds this plan, and a choice that is a mixture of others.
            box = Box(every.low, levels_of(program, placing), every.live)
            for others in (found[:2], found[2:5], found):
                mixture = np.mean([tables_of(program, p) for p in others], axis=0)
                levels = np.maximum(box.high, program.mean @ mixture)
                new = cuts.new(box, Solution(1e-9, mixture, levels, 0 * mixture))
                broken += len(new)
                for cut in new:
                    assert cut @ mixture > 1
                    for plan in found:
                        if is_inside(program, box, plan):
                            assert cut @ tables_of(program, plan) <= 1 + 1e-6
    assert broken > 100


@pytest.mark.parametrize("where", FLEETS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_splits_lose_no_plan_and_bounds_hold(seed, where):
    search = make_search(seed, *where)
    program, found = search.program, plans(search, seed)
    boxes = [program.whole_box()]
    inside = 0
    for _ in range(12):
        box = boxes.pop(0)
        solution = solve(program, box)
        for plan in found:
            if is_inside(program, box, plan) and is_low(program, box, plan):
                inside += 1
                assert solution is not None
                assert solution.bound_ms <= plan.ledger.step_ms() * (1 + 1e-9)
        for halves in [] if solution is None else splits(program, box, solution):
            for plan in found:
                if is_inside(program, box, plan) and is_low(program, box, plan):
                    assert any(
                        is_inside(program, half, plan) and is_low(program, half, plan)
                        for half in halves
                    )
            boxes += halves
        if not boxes:
            break
    assert inside >= PLANS


@pytest.mark.parametrize("where", FLEETS, ids=str)
def test_no_plan_beats_the_bound_of_the_tree(where):
    search = make_search(3, *where)
    tree = Tree([search.program], np.inf)
    root_ms = tree.bound_ms
    tree.explore(lambda node: search.place(node.solution, np.inf, 0).ledger.step_ms())
    assert root_ms <= tree.bound_ms
    for plan in [*plans(search, 0), *plans(search, 1)]:
        assert tree.bound_ms <= plan.ledger.step_ms() * (1 + 1e-9)
    assert tree.best_ms <= min(p.ledger.step_ms() for p in plans(search, 2))
