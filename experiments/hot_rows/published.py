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
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import brentq

from embark_jax import planner
from embark_jax.planner import TableList
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import table_uses
from embark_jax.plans import fleet
from embark_jax.plans.options import Cluster
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
TAKEN = {"Taobao": (0.13, 0.86), "Criteo": (0.022, 0.90), "Terabyte": (0.022, 0.90)}
"""Share of rows, and the share of accesses that they take (P2RES); Kaggle's also for
the terabyte, of which none is published."""
FAE_BUDGET_BYTES = {"rmc1": 256e6, "rmc2": 256e6, "rmc3": 512e6, "rmc4": 256e6}
FAE_TERABYTE_HOT = 0.82
"""Of samples, with 512 MB; the others' shares are calculated."""
FAE_BATCH = 1024
"""Of FAE's released script for Kaggle; taken for all four."""

P2RES_BATCHES = (8192, 65_536)
"""Not published; 256 and 2,048 a GPU."""
P2RES_MODELS = ("taobao", "criteo_kaggle", "terabyte")
REPLICATED_BYTES = 16e9
"""Most bytes of rows that P2RES replicates, half of a GPU's memory."""
BUDGETS = 25
"""Numbers of replicated rows that P2RES's model looks at."""
NARROWEST = 64
"""Width of a column shard in TorchRec, at least: its ``min_partition``."""
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


def step_ms(job: Job, placements: Sequence[Placement]) -> float:
    return simulate_program(job, placements).timeline.step_ms


def on_one_gpu(job: Job, number: int, columns: int = 1) -> Placement:
    """A whole table, or each of its column shards, on a GPU that pools its rows. Tables
    take turns over nodes."""
    machines = job.workload.fleet
    node, turn = number % machines.nodes, number // machines.nodes
    gpus = [(columns * turn + k) % machines.gpus_per_node for k in range(columns)]
    owners = tuple(node * machines.gpus_per_node + gpu for gpu in gpus)
    return Placement(job.tables[number], "rb", 1, columns, owners)


def on_one_node(job: Job, number: int) -> Placement:
    """A table with its rows over the GPUs of a node, which add sums up before these
    leave it."""
    machines, table = job.workload.fleet, job.tables[number]
    gpus = min(table.rows, machines.gpus_per_node)
    first = number % machines.nodes * machines.gpus_per_node
    owners = tuple(range(first, first + gpus))
    return Placement(table, "rb", gpus, devices=owners, exchange="hierarchical")


def row_wise(job: Job, number: int, cluster: Cluster = "rb", hot: int = 0) -> Placement:
    """A table with its rows over all GPUs, but for ``hot`` rows on each."""
    table = job.tables[number]
    if hot >= table.rows:
        return Placement(table, "dp")
    shards = min(table.rows - hot, job.workload.devices)
    owners = tuple(range(shards))
    return Placement(table, cluster, shards, devices=owners, hot_rows=hot)


def torchrec_choices(job: Job, number: int) -> Iterator[Placement]:
    """TorchRec's placements of a table: table-wise, by rows in a node, row-wise, in two
    column shards, replicated."""
    table = job.tables[number]
    yield on_one_gpu(job, number)
    yield on_one_node(job, number)
    yield row_wise(job, number)
    if table.dim >= 2 * NARROWEST:
        yield on_one_gpu(job, number, columns=2)
    if FLOAT_BYTES * table.rows * table.dim < REPLICATED_BYTES / 16:
        yield Placement(table, "dp")


def torchrec(job: Job) -> float:
    """TorchRec's step: all tables placed alike, then table by table in whatever way
    makes the simulated step shorter: ms. Ids are not made unique."""
    choices = [list(torchrec_choices(job, i)) for i in range(len(job.tables))]
    largest = sorted(range(len(choices)), key=lambda i: -job.tables[i].rows)
    shortest_ms = math.inf
    for alike in range(3):
        placements = [of_table[alike] for of_table in choices]
        ms = step_ms(job, placements)
        for number in largest:
            for choice in choices[number]:
                tried = [*placements]
                tried[number] = choice
                tried_ms = step_ms(job, tried)
                if tried_ms < ms:
                    placements, ms = tried, tried_ms
        shortest_ms = min(shortest_ms, ms)
    return shortest_ms


def hugectr(job: Job) -> float:
    """HugeCTR's step with one of its two sparse embeddings, "localized", whole tables
    on single GPUs, or "distributed", all rows over all GPUs: ms."""
    numbers = range(len(job.tables))
    localized = [on_one_gpu(job, number) for number in numbers]
    distributed = [row_wise(job, number) for number in numbers]
    return min(step_ms(job, localized), step_ms(job, distributed))


def two_fold(job: Job) -> tuple[float, float, float]:
    """P2RES's step: rows above one frequency on every GPU, the others over all GPUs,
    which send each row once.

    Returns:
      ms without replicated rows, ms with as many as make it shortest, and their bytes.
    """
    numbers = range(len(job.tables))
    row_bytes = [FLOAT_BYTES * table.dim for table in job.tables]
    sizes = [FLOAT_BYTES * table.dim * table.rows for table in job.tables]

    def with_rows(hot: Sequence[int]) -> float:
        return step_ms(job, [row_wise(job, i, "ub", hot[i]) for i in numbers])

    none_ms = with_rows([0] * len(job.tables))
    best = (none_ms, 0.0)
    for budget in np.geomspace(1e5, min(sum(sizes), REPLICATED_BYTES), BUDGETS):
        hot = list(all_hot(job, budget)[0].values())
        best = min(best, (with_rows(hot), float(np.dot(hot, row_bytes))))
    return none_ms, *best


def planned(job: Job) -> float:
    """The step of this package's plan: ms."""
    plan = planner.plan_for(job.workload, job.tables, job.features)
    return step_ms(job, plan.placements)


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
        listed = planner.load_table_list(name)
        law = law_of_share(listed, *TAKEN[data.split()[0]]) if data != "Avazu" else 0.0
        if law:
            yield listed, "published share", law, NO_STATISTICS
        if data in exponents:
            statistics = laws_of_columns(listed, exponents[data])
            yield listed, "columns of a sample", law, statistics


def compare_p2res() -> None:
    low, high = P2RES_SPEEDUP
    print(
        "| model | GB | exponent | batch | network port | parameter server, ms "
        "| TorchRec | HugeCTR | P2RES, no R | P2RES | MB of R | ours "
        f"| P2RES over parameter server; published {low}–{high} "
        "| over TorchRec | over HugeCTR |"
    )
    print("|---" * 15 + "|")
    ports = {"a GPU": "v100", "a node": str(HERE / "p2res" / "one_port.yaml")}
    for name in P2RES_MODELS:
        listed = planner.load_table_list(HERE / "p2res" / f"{name}.yaml")
        law = law_of_share(listed, *TAKEN[str(listed.name).split()[0].rstrip(",")])
        for batch, (port, machines) in itertools.product(P2RES_BATCHES, ports.items()):
            job = job_of_list(
                listed, fleet.load(machines, 4, 8), batch, law, kernels="mosaic_gpu"
            )
            server_ms = with_host_tables(job, unique=True)
            torchrec_ms, hugectr_ms = torchrec(job), hugectr(job)
            none_ms, p2res_ms, hot_bytes = two_fold(job)
            sizes = [FLOAT_BYTES * t.rows * t.dim for t in job.tables]
            times = (server_ms, torchrec_ms, hugectr_ms, none_ms, p2res_ms)
            cells = [f"{ms:.2f}" for ms in times]
            cells += [f"{hot_bytes / 1e6:.1f}", f"{planned(job):.2f}"]
            cells += [f"{ms / p2res_ms:.2f}" for ms in times[:3]]
            print(
                f"| {listed.name} | {sum(sizes) / 1e9:.3g} | {law:.2f} | {batch:,} "
                f"| {port} | {' | '.join(cells)} |",
                flush=True,
            )


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
