"""Hot rows, chosen by the planner, and P2RES's choice on its machines; see README.md.

    python experiments/hot_rows/run.py gain      # plans with and without hot rows
    python experiments/hot_rows/run.py memory    # hot rows, slots, host memory at once
    python experiments/hot_rows/run.py p2res     # beside what P2RES published

Each writes a JSON file beside this and prints a table. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import brentq

from embark_jax import planner
from embark_jax.planner import TableList
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.request.workload import table_uses
from embark_jax.plans import fleet
from embark_jax.plans.forced import ForcedPlacement
from embark_jax.plans.options import Cluster
from embark_jax.plans.plan import Plan
from embark_jax.plans.storage import Placement
from embark_jax.simulator import Job, job_of_list, serial, simulate_program
from embark_jax.simulator.tasks import MEMORY, NODE_LINK, TENSOR_CORES, Tasks
from embark_jax.simulator.timeline import schedule
from embark_jax.statistics.skew import Zipf, row_probabilities

HERE = Path(__file__).parent
CASES = (("dlrm_dcnv2", 1), ("dlrm_dcnv2", 8), ("dlrm_dcnv2", 16), ("t180", 1))
CASES += (("t180", 16), ("synthetic_small", 8))
SKEWS = (0.0, 0.6, 0.9, 1.1, 1.3)

NEAR_MEMORY = tuple(itertools.product(("dlrm_dcnv2", "t7"), (1, 2, 4, 8)))
"""Models and GPUs."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Of device memory, that a step may take."""
HOST_BYTES = 2e12
"""Memory of a DGX H100, which the GPUs of a case have to themselves."""
HOST_LINK_BYTES_PER_S = 64e9
"""PCIe 5, in one direction."""
ZIPF_EXPONENT = 1.1

HOST_BYTES_PER_S = float(
    yaml.safe_load((HERE / "p2res" / "host.yaml").read_text())["memory_bytes_per_s"]
)
FLOAT_BYTES = 4
TAKEN = {
    "taobao": (0.13, 0.86),
    "criteo_kaggle": (0.022, 0.90),
    "terabyte": (0.022, 0.90),
}
"""Share of rows, and the share of accesses that they take (P2RES); Kaggle's also for
the terabyte, of which none is published."""
P2RES_BATCHES = (8192, 65_536)
"""Not published; 256 and 2,048 a GPU."""
PORTS = {"a GPU": "v100", "a node": str(HERE / "p2res" / "one_port.yaml")}
REPLICATED_BYTES = 16e9
"""Most bytes of rows that P2RES replicates, half of a GPU's memory."""
BUDGETS = 25
"""Numbers of replicated rows that P2RES's model looks at."""
GRID = 400
"""Numbers of hot rows that are looked at, a table."""


def gain(model: str, nodes: int, skew: float) -> dict[str, Any]:
    """Both plans of one case."""
    listed = planner.load_table_list(model)
    tables, features = listed.specs()
    workload = listed.workload(
        fleet.dgx_h100(nodes), None, skew, overlap=False, kernels="mosaic_gpu"
    )
    cold = dict.fromkeys((t.name for t in tables), ForcedPlacement(hot_rows=0))
    found: dict[str, Any] = {"model": model, "gpus": 8 * nodes, "zipf_exponent": skew}
    for name, forced in (("with", {}), ("without", cold)):
        begin = time.process_time()
        made = planner.plan_for(workload, tables, features, forced=forced)
        found[name] = {"cpu_s": time.process_time() - begin, **describe(made)}
    return found


def describe(made: Plan) -> dict[str, Any]:
    """What is told of a plan."""
    assert made.prediction is not None
    breakdown = made.prediction.breakdown
    assert breakdown is not None
    return {
        "step_ms": made.prediction.step_ms,
        "bound_ms": made.prediction.lower_bound_ms,
        "exchanged_bytes": breakdown.padded_bytes * (made.devices - 1),
        "reduced_bytes": breakdown.reduced_bytes,
        "hot_tables": sum(each.hot_rows > 0 for each in made.placements),
        "hot_rows": sum(each.hot_rows for each in made.placements),
    }


def gains() -> Iterator[dict[str, Any]]:
    """Yields all cases, and prints the table."""
    print(
        "| model | GPUs | Zipf | ms without | with | shorter | MB exchanged without | "
        "with | tables with hot rows | hot rows | CPU s without | with |"
    )
    print("|---" * 12 + "|")
    for (model, nodes), skew in itertools.product(CASES, SKEWS):
        each = gain(model, nodes, skew)
        hot, cold = each["with"], each["without"]
        shorter = 1 - hot["step_ms"] / cold["step_ms"]
        print(
            f"| {model} | {each['gpus']} | {skew} | {cold['step_ms']:.3f} | "
            f"{hot['step_ms']:.3f} | {shorter:.1%} | "
            f"{cold['exchanged_bytes'] / 1e6:.1f} | "
            f"{hot['exchanged_bytes'] / 1e6:.1f} | {hot['hot_tables']} | "
            f"{hot['hot_rows']:,} | {cold['cpu_s']:.1f} | {hot['cpu_s']:.1f} |",
            flush=True,
        )
        yield each


def near_memory(model: str, gpus: int, share: float, hot: bool) -> dict[str, Any]:
    """A plan that may put any table's rows anywhere."""
    machines = fleet.dgx_h100(1, gpus)
    device = dataclasses.replace(
        machines.device,
        host_bytes_per_s=HOST_LINK_BYTES_PER_S,
        host_memory_bytes=HOST_BYTES / gpus,
    )
    machines = dataclasses.replace(machines, device=device)
    listed = planner.load_table_list(model)
    job = job_of_list(listed, machines, zipf_exponent=ZIPF_EXPONENT)
    tables = [dataclasses.replace(table, tier="auto") for table in job.tables]
    workload = dataclasses.replace(
        job.workload, overlap=True, memory_gb=share * device.memory_bytes / 1e9
    )
    forced = {} if hot else {t.name: ForcedPlacement(hot_rows=0) for t in tables}
    case = {"model": model, "gpus": gpus, "share": share, "hot": hot}
    try:
        plan = planner.plan_for(workload, tables, job.features, forced=forced)
    except ValueError as error:
        return case | {"problem": str(error)}
    job = dataclasses.replace(job, tables=plan.tables, workload=workload)
    timeline = simulate_program(job, plan.placements).timeline
    prediction, placements = plan.prediction, plan.placements
    assert prediction is not None
    assert prediction.breakdown is not None
    rows = sum(table.rows for table in plan.tables)
    cached = [p for p in placements if p.table.cached]
    hot_rows = sum(p.hot_rows for p in placements)
    slots = sum(p.table.slots or 0 for p in cached)
    return case | {
        "embeddings_ms": prediction.step_ms,
        "bound_ms": prediction.lower_bound_ms,
        "step_ms": timeline.step_ms,
        "row_store_ms": float(timeline.phase_ms().get("row store", [0.0])[0]),
        "exposed_ms": prediction.breakdown.critical_ms.get("row store", 0.0),
        "hot_rows": hot_rows,
        "hot_tables": sum(p.hot_rows > 0 for p in placements),
        "cached_tables": len(cached),
        "slots": slots,
        "host_rows": sum(p.table.rows for p in cached),
        "rows": rows,
    }


def all_near_memory() -> Iterator[dict[str, Any]]:
    """Yields all cases, and prints the table."""
    print(
        "| model | GPUs | share | hot rows | step, ms | embeddings | bound | row store "
        "| exposed | hot rows | slots | on host |\n" + 12 * "|---" + "|"
    )
    for (model, gpus), share, hot in itertools.product(
        NEAR_MEMORY, SHARES, (True, False)
    ):
        case = near_memory(model, gpus, share, hot)
        head = f"| {model} | {gpus} | {share:.0%} | {'yes' if hot else 'no'} | "
        if "problem" in case:
            print(f"{head}{case['problem'][:60]} |")
        else:
            keys = ("step", "embeddings", "bound", "row_store", "exposed")
            figures = " | ".join(f"{case[f'{key}_ms']:.2f}" for key in keys)
            print(
                f"{head}{figures} | {case['hot_rows']:,} | {case['slots']:,} | "
                f"{case['host_rows'] / case['rows']:.0%} |",
                flush=True,
            )
        yield case


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

    return float(brentq(surplus, 0.01, 3.0))  # pyright: ignore[reportArgumentType]


def hot_within(job: Job, budget_bytes: float) -> list[int]:
    """Hot rows of each table within a budget, by one frequency for all tables."""
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
    row_bytes = np.array([FLOAT_BYTES * use.table.dim for use in uses])
    fitting = bisect.bisect_right(
        levels, budget_bytes, key=lambda level: row_bytes @ hot_rows(level)
    )
    return hot_rows(levels[max(0, fitting - 1)])


def step_ms(job: Job, placements: Sequence[Placement]) -> float:
    return simulate_program(job, placements).timeline.step_ms


def on_one_gpu(job: Job, number: int) -> Placement:
    """A whole table on a GPU that pools its rows; tables take turns over nodes."""
    machines = job.workload.fleet
    node, turn = number % machines.nodes, number // machines.nodes
    owner = node * machines.gpus_per_node + turn % machines.gpus_per_node
    return Placement(job.tables[number], "rb", 1, devices=(owner,))


def row_wise(job: Job, number: int, cluster: Cluster = "rb", hot: int = 0) -> Placement:
    """A table with its rows over all GPUs, but for ``hot`` rows on each."""
    table = job.tables[number]
    if hot >= table.rows:
        return Placement(table, "dp")
    shards = min(table.rows - hot, job.workload.devices)
    owners = tuple(range(shards))
    return Placement(table, cluster, shards, devices=owners, hot_rows=hot)


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
        hot = hot_within(job, budget)
        best = min(best, (with_rows(hot), float(np.dot(hot, row_bytes))))
    return none_ms, *best


def parameter_server(job: Job) -> float:
    """Step with all tables in the memory of the hosts of all nodes, evenly spread, one
    thing after the other: ms. A GPU asks for each row once and pools itself."""
    workload, machines = job.workload, job.workload.fleet
    make = Tasks(Rates(machines))
    moved = 0.0  # bytes of rows of a GPU's samples
    for use in table_uses(job.tables, job.features, workload):
        ids = workload.device_batch * use.hotness
        rows = use.skew.expected_unique(use.rows, ids)
        moved += FLOAT_BYTES * use.table.dim * rows
    gpus = machines.gpus_per_node
    rate = HOST_BYTES_PER_S * machines.efficiency.memory
    link = machines.efficiency.link

    def host(name: str, bytes_a_gpu: float):
        """Of a host, for as many GPUs as a node has."""
        return make.task(name, "host", MEMORY, 1e3 * gpus * bytes_a_gpu / rate)

    def travel(name: str):
        seconds = moved / machines.device.node_link_bytes_per_s
        elsewhere = moved * (machines.nodes - 1) / machines.nodes
        seconds = max(seconds, elsewhere / machines.device.network_bytes_per_s)
        return make.task(name, "travel", NODE_LINK, 1e3 * seconds / link)

    dense = make.dense(
        job.network, workload.device_batch, "float16", (), (), TENSOR_CORES | MEMORY
    )
    gradient_bytes = FLOAT_BYTES * job.network.parameters
    states = workload.state_values[0]
    tasks = [
        host("look up", 2 * moved),
        travel("rows to GPUs"),
        *dense,
        make.all_reduce("sum dense gradients", "all-reduce", gradient_bytes, ()),
        travel("gradients to hosts"),
        host("update", moved * (3 + 2 * states)),
    ]
    return schedule(serial(tasks)).step_ms


def beside_p2res() -> Iterator[dict[str, Any]]:
    """Yields steps of 32 V100, in ms, and prints the table."""
    print(
        "| model | batch | network port | parameter server, ms | HugeCTR | P2RES, no R "
        "| P2RES | MB of R | ours | P2RES over parameter server | over HugeCTR |\n"
        + 11 * "|---"
        + "|"
    )
    for name, taken in TAKEN.items():
        listed = planner.load_table_list(HERE / "p2res" / f"{name}.yaml")
        law = law_of_share(listed, *taken)
        for batch, (port, machines) in itertools.product(P2RES_BATCHES, PORTS.items()):
            job = job_of_list(
                listed, fleet.load(machines, 4, 8), batch, law, kernels="mosaic_gpu"
            )
            server_ms, hugectr_ms = parameter_server(job), hugectr(job)
            none_ms, p2res_ms, hot_bytes = two_fold(job)
            plan = planner.plan_for(job.workload, job.tables, job.features)
            times = {
                "parameter server": server_ms,
                "HugeCTR": hugectr_ms,
                "P2RES, no R": none_ms,
                "P2RES": p2res_ms,
                "ours": step_ms(job, plan.placements),
            }
            cells = [f"{ms:.2f}" for ms in times.values()]
            cells.insert(4, f"{hot_bytes / 1e6:.1f}")
            cells += [f"{ms / p2res_ms:.2f}" for ms in (server_ms, hugectr_ms)]
            head = f"| {listed.name} | {batch:,} | {port} | "
            print(f"{head}{' | '.join(cells)} |", flush=True)
            yield {"model": name, "batch": batch, "port": port, "ms": times}


PARTS = {"gain": gains, "memory": all_near_memory, "p2res": beside_p2res}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--cases", type=int, help="only the first so many")
    parser.add_argument("--out", type=Path, help="the JSON file")
    asked = parser.parse_args()
    results = list(itertools.islice(PARTS[asked.what](), asked.cases))
    out = asked.out or HERE / f"{asked.what}.json"
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
