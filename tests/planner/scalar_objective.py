"""The objective, one shard at a time: the oracle of ``planner/cost/objective.py``."""

import dataclasses
import math
from collections import Counter, defaultdict

import numpy as np

from embark_jax.planner.cost.candidates import Candidates, candidates_of, uses_of
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.plans.clusters import EXCHANGES
from embark_jax.plans.storage import RowRange, StorageKind, row_ranges


def storage_of(placed: RowRange, candidate: Candidates) -> StorageKind:
    """The storage of a row range."""
    split = placed.cluster, placed.column_shards, placed.exchange
    return StorageKind.of(placed.table, *split, bool(candidate.weighted[0]))


def step_ms(placements, features, workload):
    """What a step takes at most: every phase until its fullest device is done; without
    what ``ids_travel_ms`` counts, if it is hidden."""
    devices_ms, store_ms = times_ms(placements, features, workload)
    if not workload.overlap:
        return devices_ms + store_ms
    return devices_ms + max(0.0, store_ms - devices_ms - products_ms(workload))


def times_ms(placements, features, workload):
    """The same without row stores, and the longest time of these on any device."""
    if workload.overlap and workload.dense.parameters > 0:
        whole = dataclasses.replace(workload, overlap=False)
        whole_ms, store_ms = times_ms(placements, features, whole)
        hidden_ms = ids_travel_ms(placements, features, workload)
        return whole_ms - hidden_share(workload) * hidden_ms, store_ms
    model = ProgramModel(workload)
    everywhere_ms, storages = 0.0, set()
    # By storage: sums and ids of each device; by storage and phase: ms of each device.
    sums, certain, expected = (defaultdict(Counter) for _ in range(3))
    phases, nodes, update = defaultdict(Counter), defaultdict(Counter), Counter()
    store = Counter()
    for placed in row_ranges(placements):
        uses = uses_of([placed], features, workload)
        candidate = candidates_of([placed], uses, workload)
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


def products_ms(workload):
    """The time of the dense layers: of one square product of 16 bits, thrice."""
    fleet, samples = workload.fleet, workload.device_batch
    weights, efficiency = workload.dense.parameters, fleet.efficiency
    if not weights:
        return 0.0
    compute_s = 2 * weights * samples / (fleet.device.flops_per_s * efficiency.flops)
    moved_bytes = 2 * (2 * samples * math.sqrt(weights) + weights)
    memory_s = moved_bytes / (fleet.device.memory_bytes_per_s * efficiency.memory)
    return 3 * (1e3 * max(compute_s, memory_s) + efficiency.kernel_us / 1e3)


def ids_travel_ms(placements, features, workload):
    """The time of links and latency of all exchanges of ids, one after the other, by
    the bytes of each."""
    fleet, slack = workload.fleet, workload.capacity_slack
    device, rate = fleet.device, fleet.efficiency.link / 1e3
    nodes, gpus, devices = fleet.nodes, fleet.gpus_per_node, fleet.devices
    rates, total_ms = Rates(fleet), 0.0

    def sent_ms(buffer_bytes, to_node, to_others):
        times = to_node / device.node_link_bytes_per_s
        times = max(times, to_others / device.network_bytes_per_s)
        return buffer_bytes * times / rate

    everywhere = (gpus - 1) / devices, 1 - gpus / devices
    reaches = {
        "fleet": (*everywhere, rates.exchange_us),
        "node": ((gpus - 1) / gpus, 0, rates.of("node").exchange_us),
        "rail": (0, (nodes - 1) / nodes, rates.of("rail").exchange_us),
    }
    sums, certain, expected = (defaultdict(Counter) for _ in range(3))
    for placed in row_ranges(placements):
        uses = uses_of([placed], features, workload)
        candidate = candidates_of([placed], uses, workload)
        storage = storage_of(placed, candidate)
        if devices > 1 and placed.cluster == "dp":
            # A flag for each row, or each id if these are fewer.
            values = min(placed.rows, workload.batch_size * int(candidate.hotness[0]))
            # A ring around all devices, twice.
            around = 2 * (1 - 1 / devices)
            between = around / gpus if nodes > 1 else 0
            shares = (around, between) if gpus > 1 else (0, around)
            total_ms += sent_ms(4 * values, *shares)
        for index, owner in enumerate(placed.devices):
            j = index // placed.column_shards
            certain[storage][owner] += candidate.sent_ids[0][j]
            expected[storage][owner] += candidate.sent_ids[1][j]
            if placed.cluster == "rb":
                sums[storage][owner] += int(candidate.bags[0])
    for storage in certain if devices > 1 else ():
        capacity = max(
            math.ceil(certain[storage][d] + max(slack * e, e + 6 * math.sqrt(e)))
            for d, e in expected[storage].items()
        )
        # A slot or a key of 64 bits; its bag and weight, or how many keys there are.
        values = 1 if storage.tier == "device" else 2
        buffer_bytes = 4 * devices * capacity * values
        if storage.cluster == "rb":
            buffer_bytes += 4 * devices * capacity * (1 + storage.weighted)
        elif values == 2:
            buffer_bytes += 4 * devices * values
        staged = EXCHANGES[storage.exchange].staged
        for reach in ("node", "rail") if staged else ("fleet",):
            if {"node": gpus, "rail": nodes}.get(reach) != 1:
                *shares, latency_us = reaches[reach]
                total_ms += sent_ms(buffer_bytes, *shares) + latency_us / 1e3
    return total_ms


def hidden_share(workload):
    """How much of the ids' travel the dense layers last, if each id travels once."""
    fleet = workload.fleet
    device, samples = fleet.device, workload.device_batch
    ids_bytes = 1.25 * samples * workload.sample_ids * 8 / fleet.devices
    ids_s = max(
        ids_bytes * (fleet.gpus_per_node - 1) / device.node_link_bytes_per_s,
        ids_bytes * (fleet.devices - fleet.gpus_per_node) / device.network_bytes_per_s,
    )
    lasts = products_ms(workload) / 1e3 * fleet.efficiency.link
    return 1.0 if lasts >= ids_s else lasts / ids_s


def random_problem(seed):
    """Tables of all sizes in any placement: ``(placements, features, workload)``."""
    from embark_jax.planner import Workload
    from embark_jax.plans import fleet
    from embark_jax.plans.storage import Placement
    from embark_jax.plans.tables import FeatureSpec, TableSpec
    from embark_jax.plans.wire import Wire
    from tests.planner.toy import RINGS

    rng = np.random.default_rng(seed)
    nodes, gpus = [(1, 1), (1, 4), (2, 2), (3, 1), (2, 4)][seed % 5]
    machines = fleet.dgx_h100(nodes, gpus_per_node=gpus)
    machines = dataclasses.replace(machines, efficiency=RINGS)
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
        exchange = str(rng.choice([*EXCHANGES]))
        placements.append(Placement(table, cluster, *split, owners, exchange, hot))
    wire = Wire(*map(str, rng.choice(["float32", "bfloat16"], 2)))
    workload = Workload(
        machines,
        int(rng.choice([2, 64, 512])) * devices,
        float(rng.choice([0.0, 0.6, 1.1, 1.3])),
        optimizer=str(rng.choice(["sgd", "rowwise_adagrad", "adam"])),
        wire=wire,
        dense=DenseLoad(int(rng.choice([0, 1000, 10**6])), 1, 8.0),
        overlap=bool(rng.random() < 0.7),
        sample_ids=sum(feature.hotness for feature in features),
    )
    return placements, features, workload
