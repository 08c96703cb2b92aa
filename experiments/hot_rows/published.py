"""Simulated steps beside what P2RES and FAE published; see README.md.

    python experiments/hot_rows/published.py p2res
    python experiments/hot_rows/published.py fae

One set of constants for all: configs/fleets/v100.yaml with its efficiencies, and the
host of p2res/host.yaml.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import brentq

from embark_jax import planner
from embark_jax.planner import TableList
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import table_uses
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.storage import Placement
from embark_jax.simulator.job import Job, job_of_list
from embark_jax.simulator.simulation import simulate_program
from embark_jax.simulator.tasks import MEMORY, NODE_LINK, TENSOR_CORES, Tasks
from embark_jax.simulator.timeline import schedule, serial
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics, TableAccess
from embark_jax.statistics.histogram import MOST_HOTTEST, Histogram
from embark_jax.statistics.skew import Zipf, row_probabilities

HERE = Path(__file__).parent
HOST_BYTES_PER_S = float(
    yaml.safe_load((HERE / "p2res" / "host.yaml").read_text())["memory_bytes_per_s"]
)
FLOAT_BYTES = 4

# What was published.
P2RES_SPEEDUP = 2.16, 16.8
"""On 32 V100s, over TF-DistributedEmbeddings, TorchRec and HugeCTR."""
FAE_SPEEDUP = 1.8
"""On 4 GPUs, over DLRM with tables in host memory, in the mean of workloads."""
FAE_COPIES = 0.13
"""Of FAE's time, in which hot rows are copied between host and GPUs."""
TAKEN = {"Taobao": (0.13, 0.86), "Criteo": (0.022, 0.90)}
"""Share of rows, and the share of accesses that they take (P2RES)."""
FAE_BUDGET_BYTES = {"rmc1": 256e6, "rmc2": 256e6, "rmc3": 512e6, "rmc4": 256e6}
FAE_TERABYTE_HOT = 0.82
"""Of samples, with 512 MB; the others' shares are calculated."""
FAE_BATCH = 1024
"""Of FAE's released script for Kaggle; taken for all four."""

P2RES_BATCH = 65_536
"""Not published; 2,048 a GPU."""
ACCESSES = 1e12
"""So many that chance does not count."""
GRID = 400
"""Numbers of hot rows that are looked at, a table."""


def root(function: Callable[[float], float], low: float, high: float) -> float:
    found = brentq(function, low, high)
    assert isinstance(found, float)
    return found


def law_of_share(listed: TableList, rows_share: float, accesses_share: float) -> float:
    """The exponent with which so many of the hottest rows of all tables take so many of
    the accesses."""
    tables, features = listed.specs()
    hotness = {t.name: 0 for t in tables}
    for feature in features:
        hotness[feature.table] += feature.hotness

    def surplus(exponent: float) -> float:
        each = [row_probabilities(t.rows, Zipf(exponent)) for t in tables]
        counts = np.concatenate([count for _, count in each])
        density = np.concatenate(
            [p * hotness[t.name] for (p, _), t in zip(each, tables, strict=True)]
        )
        order = np.argsort(-density)
        rows = np.cumsum(counts[order])
        taken = np.cumsum((density * counts)[order])
        found = np.interp(rows_share * rows[-1], rows, taken / taken[-1])
        return float(found) - accesses_share

    return root(surplus, 0.01, 3.0)


def laws_of_columns(listed: TableList, exponents: Mapping[str, float]) -> Statistics:
    """Power laws, as a sample of very many accesses shows them."""
    tables = {}
    for table in listed.specs()[0]:
        if table.name in exponents:
            law = Zipf(exponents[table.name])
            probability, count = row_probabilities(table.rows, law)
            accesses = np.maximum(count, ACCESSES * probability * count)
            first = range(min(MOST_HOTTEST, len(count), table.rows))
            histogram = Histogram(
                tuple(zip(map(round, count), map(round, accesses), strict=True)),
                tuple((row, round(accesses[row])) for row in first),
            )
            tables[table.name] = TableAccess(table.rows, histogram)
    return Statistics(0, {}, tables)


def all_hot(job: Job, budget_bytes: float) -> tuple[dict[str, int], float]:
    """Hot rows of each table within a budget, and the share of samples that look up no
    other; columns are taken as independent. Rows are hot from one frequency on."""
    uses = table_uses(job.tables, job.features, job.workload)
    grid = [np.unique(np.geomspace(1, use.rows, GRID).astype(np.int64)) for use in uses]
    taken = [
        np.array([use.skew.share(use.rows, 0, int(n)) for n in rows])
        for use, rows in zip(uses, grid, strict=True)
    ]
    # Of the rows between two points of the grid: how often one of them is looked up.
    frequency = [
        np.diff(share, prepend=0.0) / np.diff(rows, prepend=0) * use.hotness
        for use, rows, share in zip(uses, grid, taken, strict=True)
    ]

    def hot_rows(coldest: float) -> list[int]:
        return [
            int(rows[max(0, (each >= coldest).sum() - 1)])
            for rows, each in zip(grid, frequency, strict=True)
        ]

    levels = np.sort(np.concatenate(frequency))[::-1]
    row_bytes = np.array([FLOAT_BYTES * use.dim for use in uses])
    fitting = bisect.bisect_right(
        levels, budget_bytes, key=lambda level: row_bytes @ hot_rows(level)
    )
    hot = hot_rows(levels[max(0, fitting - 1)])
    share = 1.0
    for use, rows in zip(uses, hot, strict=True):
        share *= use.skew.share(use.rows, 0, rows) ** use.hotness
    return {t.name: n for t, n in zip(job.tables, hot, strict=True)}, share


def table_wise(job: Job) -> float:
    """Step of whole tables on single GPUs, pooled there: ms."""
    whole = ForcedPlacement("rb", 1, 1, exchange="flat", hot_rows=0)
    return planned(job, dict.fromkeys((t.name for t in job.tables), whole))


def planned(job: Job, forced: Mapping[str, ForcedPlacement] | None = None) -> float:
    made = planner.plan_for(job.workload, job.tables, job.features, forced=forced)
    return simulate_program(job, made.placements).timeline.step_ms


def with_host_tables(job: Job, unique: bool) -> float:
    """Step with all tables in the hosts' memory, one thing after the other: ms.

    Args:
      job: what is trained.
      unique: whether a GPU asks for each row once and pools itself, as workers of a
        parameter server do; else hosts pool, as in hybrid training. Tables are spread
        evenly over the hosts of all nodes.
    """
    workload, machines = job.workload, job.workload.fleet
    make = Tasks(Rates(machines))
    looked_up = sent = 0.0  # bytes of a GPU's samples
    for use in table_uses(job.tables, job.features, workload):
        ids, bags = (workload.device_batch * n for n in (use.hotness, use.bags))
        found = use.skew.expected_unique(use.rows, ids)
        looked_up += FLOAT_BYTES * use.dim * (found if unique else ids)
        sent += FLOAT_BYTES * use.dim * (found if unique else bags)
    gpus = machines.gpus_per_node
    rate = HOST_BYTES_PER_S * machines.efficiency.memory
    link = machines.efficiency.link

    def host(name: str, bytes_a_gpu: float):
        """Of a host, for as many GPUs as a node has."""
        return make.task(name, "host", MEMORY, 1e3 * gpus * bytes_a_gpu / rate)

    def travel(name: str):
        seconds = sent / machines.device.node_link_bytes_per_s
        elsewhere = sent * (machines.nodes - 1) / machines.nodes
        seconds = max(seconds, elsewhere / machines.device.network_bytes_per_s)
        return make.task(name, "travel", NODE_LINK, 1e3 * seconds / link)

    dense = make.dense(
        job.network, workload.device_batch, "float16", (), (), TENSOR_CORES | MEMORY
    )
    gradient_bytes = FLOAT_BYTES * job.network.parameters
    states = workload.state_values[0]
    tasks = [
        host("look up", looked_up + sent),
        travel("rows to GPUs"),
        *dense,
        make.all_reduce("sum dense gradients", "all-reduce", gradient_bytes, ()),
        travel("gradients to hosts"),
        host("update", sent + looked_up * 2 * (1 + states)),
    ]
    return schedule(serial(tasks)).step_ms


def all_hot_step(job: Job, hot_rows: Mapping[str, int]) -> float:
    """Step of a batch of hot rows alone, which are on all GPUs: ms."""
    tables = [dataclasses.replace(t, rows=hot_rows[t.name]) for t in job.tables]
    # Their ids are as skewed as the power law that the job names besides.
    workload = dataclasses.replace(job.workload, statistics=NO_STATISTICS)
    on_gpus = dataclasses.replace(job, tables=tables, workload=workload)
    placements = [Placement(t, "dp") for t in tables]
    return simulate_program(on_gpus, placements).timeline.step_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("p2res", "fae"))
    {"p2res": compare_p2res, "fae": compare_fae}[parser.parse_args().what]()


def workloads(
    names: Mapping[str, str],
) -> Iterator[tuple[TableList, str, float, Statistics]]:
    """Table lists, each with what its skew is taken from: the share that is published
    of its data, or the columns of a sample, where there is one."""
    exponents = json.loads((HERE.parent / "hot_batches" / "exponents.json").read_text())
    for name, data in names.items():
        own = HERE / "p2res" / f"{name}.yaml"
        listed = planner.load_table_list(own if own.exists() else name)
        law = law_of_share(listed, *TAKEN[data.split()[0]]) if data != "Avazu" else 0.0
        if law:
            yield listed, "published share", law, NO_STATISTICS
        if data in exponents:
            yield (
                listed,
                "columns of a sample",
                law,
                laws_of_columns(listed, exponents[data]),
            )


def compare_p2res() -> None:
    low, high = P2RES_SPEEDUP
    print(
        "| model | network port | skew | parameter server, ms | table-wise "
        "| no hot rows | hot rows | over parameter server "
        f"| over table-wise; published {low}–{high} |"
    )
    print("|---" * 9 + "|")
    names = {"taobao": "Taobao", "criteo_kaggle": "Criteo Kaggle", "rmc3": "Criteo"}
    ports = {"a GPU": "v100", "a node": str(HERE / "p2res" / "one_port.yaml")}
    for listed, skew, law, statistics in workloads(names):
        for port, machines in ports.items():
            job = job_of_list(
                listed,
                fleet.load(machines, 4, 8),
                P2RES_BATCH,
                law,
                kernels="mosaic_gpu",
            )
            job = with_statistics(job, statistics)
            cold = dict.fromkeys(
                (t.name for t in job.tables), ForcedPlacement(hot_rows=0)
            )
            ms = {
                "parameter_server": with_host_tables(job, unique=True),
                "table_wise": table_wise(job),
                "cold": planned(job, cold),
                "hot": planned(job),
            }
            cells = [f"{each:.2f}" for each in ms.values()]
            cells += [
                f"{ms[each] / ms['hot']:.2f}"
                for each in ("parameter_server", "table_wise")
            ]
            print(f"| {listed.name} | {port} | {skew} | {' | '.join(cells)} |")


def compare_fae() -> None:
    print(
        "| workload | skew | all-hot, calculated | hybrid, ms | all-hot | FAE | ours "
        f"| FAE over hybrid; published {FAE_SPEEDUP} | ours over hybrid "
        f"| hybrid that makes it {FAE_SPEEDUP}, ms |"
    )
    print("|---" * 10 + "|")
    names = {
        **{"rmc1": "Taobao", "rmc2": "Criteo Kaggle"},
        **{"rmc3": "Criteo", "rmc4": "Avazu"},
    }
    for listed, skew, law, statistics in workloads(names):
        job = job_of_list(
            listed, fleet.load("v100", 1, 4), FAE_BATCH, law, kernels="mosaic_gpu"
        )
        job = with_statistics(job, statistics)
        hot_rows, hot = all_hot(job, FAE_BUDGET_BYTES[str(listed.name).lower()])
        taken = FAE_TERABYTE_HOT if listed.name == "RMC3" else hot
        hybrid, on_gpus = (
            with_host_tables(job, unique=False),
            all_hot_step(job, hot_rows),
        )
        ms = {
            "hybrid": hybrid,
            "all_hot": on_gpus,
            "fae": (taken * on_gpus + (1 - taken) * hybrid) / (1 - FAE_COPIES),
            "ours": planned(job),
        }
        # x / speedup = (taken * on_gpus + (1 - taken) * x) / (1 - copies), for x.
        needed = (1 - FAE_COPIES) / FAE_SPEEDUP - (1 - taken)
        ms["hybrid_needed"] = taken * on_gpus / needed if needed > 0 else math.inf
        cells = [f"{hot:.0%}"]
        cells += [f"{ms[each]:.3f}" for each in ("hybrid", "all_hot", "fae", "ours")]
        cells += [f"{hybrid / ms[each]:.2f}" for each in ("fae", "ours")]
        cells += [f"{ms['hybrid_needed']:.1f}" if needed > 0 else "none does"]
        print(f"| {listed.name} | {skew} | {' | '.join(cells)} |")


def with_statistics(job: Job, statistics: Statistics) -> Job:
    workload = dataclasses.replace(job.workload, statistics=statistics)
    return dataclasses.replace(job, workload=workload)


if __name__ == "__main__":
    main()
