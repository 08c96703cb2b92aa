"""The objective, one shard at a time: the oracle of ``planner/cost/objective.py``."""

import dataclasses
import math
from collections import Counter, defaultdict

import numpy as np

from embark_jax.planner.cost.candidates import Candidates, uses_of
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.work import Peak
from embark_jax.plans.storage import RowRange, StorageKind, row_ranges


def storage_of(placed: RowRange, candidate: Candidates) -> StorageKind:
    """The storage of a row range."""
    split = placed.cluster, placed.column_shards, placed.exchange
    return StorageKind.of(placed.table, *split, bool(candidate.weighted[0]))


def step_ms(placements, features, workload):
    """What a step takes at most: every phase until its fullest device is done. Without
    dense layers nothing hides what ids travel."""
    devices_ms, store_ms = times_ms(placements, features, workload)
    if not workload.overlap:
        return devices_ms + store_ms
    return max(devices_ms, store_ms)


def times_ms(placements, features, workload):
    """The same without row stores, and the longest time of these on any device."""
    model = ProgramModel(workload)
    everywhere_ms, storages = 0.0, set()
    # By storage: sums and ids of each device; by storage and phase: ms of each device.
    sums, certain, expected = (defaultdict(Counter) for _ in range(3))
    phases, nodes, update = defaultdict(Counter), defaultdict(Counter), Counter()
    store = Counter()
    for placed in row_ranges(placements):
        uses = uses_of([placed], features, workload)
        candidate = Candidates.of_ranges([placed], uses, workload)
        storage = storage_of(placed, candidate)
        storages.add(storage)
        everywhere_ms += float(model.everywhere_ms(candidate)[0])
        if placed.cluster == "dp":
            continue
        bags = int(candidate.bags[0]) if placed.cluster == "rb" else 0
        owner_ms = model.owner_ms(candidate)
        for index, device in enumerate(placed.devices):
            j = index // placed.column_shards
            sums[storage][device] += bags
            certain[storage][device] += candidate.sent_ids[0][j]
            expected[storage][device] += candidate.sent_ids[1][j]
            phases[storage, "lookup"][device] += owner_ms[0, j]
            phases[storage, "gradients"][device] += owner_ms[1, j]
            update[device] += owner_ms[2, j]
            store[device] += owner_ms[3, j]
        if storage.of_exchange.staged:
            gpus, columns = workload.fleet.gpus_per_node, placed.column_shards
            held = {(d // gpus, i % columns) for i, d in enumerate(placed.devices)}
            nodes[storage].update(
                {n: bags * c for n, c in Counter(n for n, _ in held).items()}
            )
    total_ms = everywhere_ms + max(update.values(), default=0.0)
    for storage in storages:
        price = model.storage_price(storage)
        slack = workload.capacity_slack
        capacity = max(
            (
                math.ceil(certain[storage][d] + max(slack * e, e + 6 * math.sqrt(e)))
                for d, e in expected[storage].items()
            ),
            default=0,
        )
        total_ms += price[Peak.USE] + price[Peak.IDS] * capacity
        total_ms += price[Peak.SUMS] * max(sums[storage].values(), default=0)
        total_ms += price[Peak.NODE] * max(nodes[storage].values(), default=0)
        for phase in ("lookup", "gradients"):
            total_ms += max(phases[storage, phase].values(), default=0.0)
    return total_ms, max(store.values(), default=0.0)


def random_problem(seed):
    """Tables of all sizes in any placement: ``(placements, features, workload)``."""
    from embark_jax.planner import Workload
    from embark_jax.plans import fleet
    from embark_jax.plans.storage import Placement
    from embark_jax.plans.tables import FeatureSpec, TableSpec
    from embark_jax.plans.wire import Wire

    rng = np.random.default_rng(seed)
    nodes, gpus = [(1, 1), (1, 4), (2, 2), (3, 1), (2, 4)][seed % 5]
    machines = fleet.dgx_h100(nodes, gpus_per_node=gpus)
    if seed % 2:
        device = dataclasses.replace(machines.device, disk_bytes_per_s=1e9)
        machines = dataclasses.replace(machines, device=device)
    devices, placements, features = machines.devices, [], []
    for i in range(rng.integers(1, 9)):
        rows = int(10 ** rng.uniform(0, 7))
        table = TableSpec(f"t{i}", rows, int(rng.choice([8, 16, 64])))
        features.append(
            FeatureSpec(
                table.name,
                hotness=int(10 ** rng.uniform(0, 2)),
                pooling=str(rng.choice(["sum", "sum", "none"])),
                weighted=bool(rng.random() < 0.3),
            )
        )
        cluster = str(rng.choice(["dp", "rb", "ub"]))
        if features[-1].sequence:
            cluster = cluster.replace("rb", "ub")
        if cluster == "dp":
            placements.append(Placement(table, "dp"))
            continue
        hot = int(rng.choice([0, 0, int(rng.integers(0, rows)), min(rows - 1, 9)]))
        split = (
            int(rng.integers(1, min(rows - hot, devices) + 1)),
            int(rng.choice([1, 2])),
        )
        owners = tuple(map(int, rng.integers(0, devices, split[0] * split[1])))
        if rng.random() < 0.4:
            table = dataclasses.replace(
                table,
                tier=str(rng.choice(["host", "disk"])),
                evict=str(rng.choice(["lru", "lfu"])),
                slots=int(rng.integers(1, rows + 1)),
            )
        exchange = str(rng.choice(["flat", "hierarchical"]))
        placements.append(Placement(table, cluster, *split, owners, exchange, hot))
    wire = Wire(*map(str, rng.choice(["float32", "bfloat16"], 2)))
    workload = Workload(
        machines,
        int(rng.choice([2, 64, 512])) * devices,
        float(rng.choice([0.0, 0.6, 1.1, 1.3])),
        optimizer=str(rng.choice(["sgd", "rowwise_adagrad", "adam"])),
        wire=wire,
        overlap=bool(rng.random() < 0.7),
    )
    return placements, features, workload
