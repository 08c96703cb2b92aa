"""Two ways to hide more of a step's exchanges, by rescheduling the simulator's tasks.

    python -m experiments.cluster_step.overlaps

*Rows ahead*: rows of the next batch that this one does not touch travel in this step;
the others after its update. Where owners pool bags, both parts are sums of all bags.
*Two halves*: of a batch, the second half's exchanges pass beside the dense layers of
the first, and the other way around; rows and parameters are those of the batch's
begin. Both give the same result as the step that they change. Writes overlaps.json
beside this file and prints the table of the README.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from embark_jax import planner
from embark_jax.config.table_lists import load_table_list
from embark_jax.planner.cost.pricing import PricedPlan, price
from embark_jax.planner.cost.rates import Rates
from embark_jax.plans import fleet
from embark_jax.plans.clusters import Reach
from embark_jax.plans.storage import Placement
from embark_jax.plans.wire import Wire
from embark_jax.simulator.step import APPLIED, SUMMED, TRAVEL, is_route, step_tasks
from embark_jax.simulator.timeline import Task, schedule
from experiments.cluster_step.run import BATCHES, FOLDER, MODELS, NODES
from experiments.embark_table1.job import job_of_list

WIRE = Wire("bfloat16", "bfloat16", "bfloat16")
FORWARD = "row exchange", "lookup"
HALVED = "lookup", "row exchange", "gradients", "gradient exchange", "square exchange"
"""Phases of storages that run once for each half; the update runs once."""


def touched_shares(priced: PricedPlan) -> dict[str, float]:
    """Returns for each storage the share of the rows that a device asks for which the
    batch before has touched."""
    workload, sums = priced.workload, defaultdict(lambda: np.zeros(2))
    storages = priced.candidates.storages
    for use, s in zip(priced.uses, priced.candidates.storage, strict=True):
        probability, rows = use.skew.probabilities(use.rows)
        asked = -np.expm1(workload.device_batch * use.ids * np.log1p(-probability))
        before = -np.expm1(workload.batch_size * use.ids * np.log1p(-probability))
        sums[storages[s].name] += rows @ asked, rows @ (asked * before)
    return {name: touched / max(asked, 1) for name, (asked, touched) in sums.items()}


def rows_ahead(
    _: Sequence[Placement], priced: PricedPlan, tasks: Sequence[Task]
) -> list[Task]:
    """Returns the tasks of a step in which rows that no update changes leave early."""
    shares, rates = touched_shares(priced), Rates(priced.workload.fleet)
    early: list[Task] = []
    late: dict[str, Task] = {}
    for storage in priced.candidates.storages:
        if storage.of_cluster.replicated:
            continue
        share, pooled = shares[storage.name], storage.of_cluster.pools_at_owner
        before = ""
        for task in tasks:
            if task.phase not in FORWARD or not task.name.startswith(
                f"{storage.name} "
            ):
                continue
            if pooled and task.phase == "lookup":
                part = share  # of the rows; exchanges carry the sums of all bags
            elif pooled or task.phase == "lookup":
                part = 1.0
            else:
                part = share
            reach = next((r for r, text in NEAREST.items() if text in task.name), None)
            latency_ms = rates.of(reach).exchange_us / 1e3 if reach else 0.0
            moving_ms = np.maximum(task.ms - latency_ms, 0)
            if pooled or task.phase == "row exchange":
                whole = 1.0 if pooled and task.phase == "row exchange" else 1 - part
                ahead = dataclasses.replace(
                    task,
                    name=f"ahead {task.name}",
                    ms=latency_ms * task.ms.any() + whole * moving_ms,
                    after=(before,) if before else (),
                )
                early.append(ahead)
                before = ahead.name
            ms = latency_ms * task.ms.any() + part * moving_ms
            late[task.name] = dataclasses.replace(task, ms=ms)
    return [*(late.get(task.name, task) for task in tasks), *early]


def two_halves(
    placements: Sequence[Placement], priced: PricedPlan, tasks: Sequence[Task]
) -> list[Task]:
    """Returns the tasks of a step whose halves hide each other's exchanges."""
    workload = priced.workload
    half = dataclasses.replace(workload, batch_size=workload.batch_size // 2)
    halves = step_tasks(price(placements, priced.features, half))
    done: list[Task] = []
    for number in (1, 2):
        split = {t.name for t in halves if t.phase in ("dense", "dense sums", *HALVED)}
        split -= {APPLIED}

        def named(name: str, number: int = number, split=split) -> str:
            return f"{number} {name}" if name in split else name

        for task in halves:
            if task.name not in split:
                continue
            after = [named(name) for name in task.after]
            if number == 1:  # leaves before the sum, which waits for both halves
                after = [name for name in after if name != SUMMED]
            done.append(
                dataclasses.replace(task, name=named(task.name), after=tuple(after))
            )
    names = {task.name for task in done}

    def both(name: str) -> list[str]:
        pair = [f"{number} {name}" for number in (1, 2)]
        return pair if pair[1] in names else [name]

    rest = [
        dataclasses.replace(task, after=tuple(n for a in task.after for n in both(a)))
        for task in tasks
        if f"1 {task.name}" not in names
    ]
    routes = [task for task in rest if is_route(task)]  # last, as ever
    return [*done, *(task for task in rest if task not in routes), *routes]


NEAREST: dict[Reach, str] = dict(reversed(TRAVEL.items()))
"""``TRAVEL`` with "travel" last, which the others begin with."""
WAYS = {"rows ahead": rows_ahead, "two halves": two_halves}


def measured(model: str, nodes: int, batch: int, sharp: fleet.Adding) -> dict[str, Any]:
    """Plans a model and simulates its step, and both ways to hide more of it."""
    machines = dataclasses.replace(fleet.dgx_h100(nodes), sharp=sharp)
    job = job_of_list(
        load_table_list(model), machines, batch, kernels="mosaic_gpu", wire=WIRE
    )
    row: dict[str, Any] = {"model": model, "gpus": machines.devices, "batch": batch}
    try:
        plan = planner.plan_for(job.workload, job.tables, job.features)
    except ValueError as error:
        return row | {"refused": str(error).splitlines()[0]}
    priced = price(plan.placements, plan.features, job.workload)
    tasks = step_tasks(priced)
    timeline = schedule(tasks)
    row["step_ms"] = timeline.step_ms
    row["exposed"] = float(timeline.exposed_ms().mean()) / timeline.step_ms
    row["touched"] = touched_shares(priced)
    for name, way in WAYS.items():
        row[name] = schedule(way(plan.placements, priced, tasks)).step_ms
    return row


def show(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of the table, and the gain in the geometric mean of 64 and 128
    GPUs."""
    yield "| model | GPUs | batch | step, ms | exposed | " + " | ".join(WAYS) + " |"
    yield (5 + len(WAYS)) * "|---" + "|"
    large = []
    for row in rows:
        if "refused" in row:
            continue
        gains = [row["step_ms"] / row[name] for name in WAYS]
        if row["gpus"] > 8:
            large.append(gains)
        cells = " | ".join(f"{gain - 1:+.1%}" for gain in gains)
        yield (
            f"| {row['model']} | {row['gpus']} | {row['batch']:,} | "
            f"{row['step_ms']:.3f} | {row['exposed']:.0%} | {cells} |"
        )
    means = np.exp(np.log(large).mean(axis=0)) - 1
    yield "| mean of 64, 128 | | | | | " + " | ".join(f"{m:+.1%}" for m in means) + " |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    for model, nodes, batch in itertools.product(MODELS, NODES, BATCHES):
        rows.append(measured(model, nodes, batch, "node"))
        print(rows[-1], flush=True)
    (FOLDER / "overlaps.json").write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(show(rows)))


if __name__ == "__main__":
    main()
