"""Large neighbourhood search: some tables are taken out together and put in anew.

A move of one table seldom helps where several would have to change at once: of three
partial sums on the fullest device, no table alone makes two. Each round takes out a few
tables that have something in common: a device, a storage, or two. They are inserted
again, the dearest first, with chance in the order. A step that is hardly longer is
kept half of the time, so that the search goes on from another plan.
"""

from __future__ import annotations

import numpy as np

from embark_jax.planner.search import params
from embark_jax.planner.search.assignment import Assignment
from embark_jax.planner.search.insertion import Insertion
from embark_jax.planner.search.local_search import LEAST_GAIN, LocalSearch


def reinsert(
    search: LocalSearch, assignment: Assignment, work: float, bound_ms: float
) -> Assignment:
    """Returns the fastest assignment of all rounds that fits.

    Args:
      search: what tables are movable, and the candidates that they choose among.
      assignment: assignment to begin with, which fits.
      work: candidates on devices that are tried (``params.INSERTION``).
      bound_ms: time near which an assignment is fast enough.
    """
    dice = np.random.default_rng(0)
    devices = search.instance.workload.devices
    movable, mean_ms = np.flatnonzero(search.movable), search.instance.mean_ms
    best, current = assignment, assignment.copy()
    best_ms = current_ms = assignment.step_ms()
    rounds = params.ROUNDS * len(movable)
    while work > 0 and rounds and best_ms > (1 + params.CLOSE) * bound_ms:
        rounds -= 1
        out = _related(current, movable, dice)
        before = {t: (int(current.candidate[t]), current.owners[t]) for t in out}
        insertion = Insertion(current, int(dice.choice(params.REINSERTED_POWERS)))
        for table in out:
            insertion.take(table)
        tried = {t: search.tried[search.instance.group[t]] for t in out}
        costs = {t: mean_ms[before[t][0]] * dice.uniform(0.5, 1.5) for t in out}
        for table in sorted(out, key=costs.__getitem__, reverse=True):
            _, candidate, owners = insertion.best(tried[table])
            insertion.put(table, candidate, owners)
        tries = [devices * len(each.chosen) for each in tried.values()]
        work -= sum(tries) + params.INSERTION * len(tries)
        step_ms = current.step_ms()
        longest_ms = current_ms * (1 + params.LONGER * dice.integers(2))
        if step_ms < longest_ms and current.fits():
            current_ms = step_ms
            if step_ms < (1 - LEAST_GAIN) * best_ms:
                best, best_ms = current.copy(), step_ms
            continue
        for table in out:
            current.take(table)
        for table, (candidate, owners) in before.items():
            current.put(table, candidate, owners)
    return best.anew()


def _related(
    assignment: Assignment, movable: np.ndarray, dice: np.random.Generator
) -> list[int]:
    """Returns some tables: any, those of one or two storages, or of a device."""
    storage = assignment.instance.candidates.storage[assignment.candidate[movable]]
    number = max(2, int(dice.choice(params.REINSERTED) * len(movable)))
    related = movable
    match dice.integers(4):
        case 0:
            related = movable[storage == dice.choice(storage)]
        case 1:
            related = movable[np.isin(storage, dice.choice(storage, 2))]
        case 2:
            device = dice.integers(assignment.instance.workload.devices)
            there = [t for t in movable if device in assignment.owners[t]]
            related = np.array(there or movable)
    return dice.permutation(related)[:number].tolist()
