"""Bounds and plans of small requests against the best of all plans there are."""

import dataclasses
import itertools

import numpy as np
import pytest

import embark_jax as ej
from embark_jax.planner import Workload, plan_for, price
from embark_jax.planner.cost.candidates import KINDS, Load
from embark_jax.planner.cost.memory import STORED_TIERS
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.planner.search import params
from embark_jax.planner.search.instance import Instance
from embark_jax.planner.search.relaxation import Relaxation
from embark_jax.planner.search.solve import least_bytes, searched
from tests.thorough import thorough

SIZES = [(1, 2, 3), (2, 1, 3), (1, 3, 2), (2, 2, 2), (1, 4, 2), (1, 1, 3)]
"""Nodes, GPUs a node, tables: so few that all plans can be tried."""
MOST_ASSIGNMENTS = 300_000
NEAR_MS = 1.02
"""Times the best of all plans, up to which a plan is expected to be."""
IN_TIERS = (0, 1, 5, 11, 16, 25, 26, 30)


pytestmark = pytest.mark.whole_search


@pytest.fixture(autouse=True)
def few_numbers_of_slots(monkeypatch):
    monkeypatch.setattr(params, "SLOT_RATIO", 1000.0)


def request(seed):
    """Tables of all sizes, with many ids or few, some of them forced, with any model,
    skew, optimizer and memory."""
    rng = np.random.default_rng(seed)
    nodes, gpus, count = SIZES[seed % len(SIZES)]
    machines = ej.fleets.dgx_h100(nodes, gpus_per_node=gpus)
    dims = [8, 16] if machines.devices < 4 else [4, 8]
    alike = rng.random() < 0.3
    tables, features, forced = [], [], {}
    for i in range(count):
        rows, dim = 4 * int(10 ** rng.uniform(0, 7)), int(rng.choice(dims))
        hotness = int(10 ** rng.uniform(0, 2))
        if alike and i:
            rows, dim, hotness = tables[0].rows, tables[0].dim, features[0].hotness
        tables.append(ej.TableSpec(f"t{i}", rows, dim))
        features.append(ej.FeatureSpec(f"t{i}", hotness=hotness))
        if rng.random() < 0.3:
            cluster = str(rng.choice(["dp", "rb", "ub"]))
            forced[f"t{i}"] = ej.ForcedPlacement(cluster)
    workload = Workload(
        machines,
        int(rng.choice([1, 128, 2048])) * machines.devices,
        float(rng.choice([0.0, 0.6, 1.1, 1.3])),
        capacity_slack=float(rng.choice([1.0, 1.25])),
        optimizer=str(rng.choice(["sgd", "rowwise_adagrad"])),
    )
    if rng.random() < 0.3:  # as much memory as half of the tables' bytes a device
        table_bytes = sum(4.2 * table.rows * table.dim for table in tables)
        memory_bytes = 0.75 * table_bytes + 1e6 + 40 * workload.batch_size * 1e3
        device = dataclasses.replace(machines.device, memory_bytes=memory_bytes)
        machines = dataclasses.replace(machines, device=device)
        workload = dataclasses.replace(workload, fleet=machines)
    return tables, features, forced, workload


def all_ms(instance, allowed):
    """``[assignments]`` ms of all that fit, or None if they are too many."""
    each, objective = instance.candidates, instance.objective
    devices, storages = objective.devices, len(objective.storages)
    nodes = instance.workload.fleet.nodes
    node_of = np.arange(devices) // instance.workload.fleet.gpus_per_node
    options = []
    for group in instance.group:
        found = []
        for c in np.flatnonzero((each.table == group) & allowed):
            shards = each.shard_loads(c)
            columns = int(each.column_shards[c])
            for owners in itertools.product(range(devices), repeat=each.shards(c)):
                own = np.zeros((KINDS, storages, devices))
                of_node = np.zeros((storages, nodes))
                used = np.isin(
                    np.arange(storages), [each.storage[c], each.hot_storage[c]]
                )
                for index, owner in enumerate(owners):
                    own[:, each.storage[c], owner] += shards[:, index // columns]
                if each.staged[c]:
                    held = {(node_of[d], i % columns) for i, d in enumerate(owners)}
                    for node, _ in held:
                        of_node[each.storage[c], node] += shards[0].max()
                alike = each.everywhere_ms[c], *each.everywhere_bytes[:, c]
                found.append(
                    np.concatenate([own.ravel(), of_node.ravel(), used, alike])
                )
        options.append(np.array(found))
    if np.prod([len(each) for each in options]) > MOST_ASSIGNMENTS:
        return None
    total = options[0][:1] * 0
    for found in options:
        total = (total[:, None] + found[None]).reshape(-1, found.shape[1])
    loads = KINDS * storages * devices
    own = total[:, :loads].reshape(-1, KINDS, storages, devices)
    rest = total[:, loads:]
    of_node = rest[:, : storages * nodes].reshape(-1, storages, nodes)
    used = rest[:, storages * nodes : -3] > 0
    expected = own[:, Load.EXPECTED]
    ids = np.ceil(
        own[:, Load.CERTAIN]
        + np.maximum(objective.slack * expected, expected + 6 * np.sqrt(expected))
    )
    certain, expected = own[:, Load.CERTAIN_UPDATED], own[:, Load.EXPECTED_UPDATED]
    rows = np.maximum(objective.slack * expected, expected + 6 * np.sqrt(expected))
    peaks = np.zeros((len(own), len(Peak), storages))
    for peak, of_devices in {
        Peak.SUMS: own[:, Load.SUMS],
        Peak.IDS: ids,
        Peak.LOOKUP: own[:, Load.LOOKUP_MS],
        Peak.GRADIENTS: own[:, Load.GRADIENTS_MS],
        Peak.ROWS: own[:, Load.ROWS],
        Peak.UPDATED: np.ceil(certain + rows),
        Peak.NODE: of_node,
        Peak.USE: used[:, :, None],
    }.items():  # update and row stores are counted below
        peaks[:, peak] = of_devices.max(axis=2)
    ms = (objective.prices * peaks).sum(axis=(1, 2))
    ms += rest[:, -3] + own[:, Load.UPDATE_MS].sum(axis=1).max(axis=1)
    store_ms = own[:, Load.STORE_MS].sum(axis=1).max(axis=1)
    if instance.workload.overlap:
        store_ms = np.maximum(0, store_ms - ms - objective.dense_ms)
    ms += store_ms
    held = (objective.held_bytes * peaks).sum(axis=(1, 2))
    update = (objective.update_bytes * peaks).sum(axis=(1, 2))
    backward, late = (objective.fixed_bytes + rest[:, -2:]).T
    needed_bytes = held + np.maximum(backward, late + update)
    fits = needed_bytes <= instance.memory.limit_bytes
    limits = instance.memory.stored_limit_bytes
    for tier, limit in zip(STORED_TIERS, limits, strict=True):
        of_tier = [storage.tier == tier for storage in objective.storages]
        stored = (
            own[:, Load.STORED_BYTES, of_tier]
            .sum(axis=1)
            .reshape(len(own), nodes, -1)
            .sum(axis=2)
        )
        fits &= stored.max(axis=1) <= limit
    return ms[fits]


def in_tiers(seed):
    """The request of a seed, with tables in any tier, on a fleet whose host memory may
    be too small for all, with look-ahead or without."""
    tables, features, forced, workload = request(seed)
    rng = np.random.default_rng([seed, 1])
    tables = [
        dataclasses.replace(table, tier=str(rng.choice(["auto", "auto", "host"])))
        for table in tables[:2]
    ]
    features = features[: len(tables)]
    names = {table.name for table in tables}
    forced = {
        name: force
        for name, force in forced.items()
        if force.cluster != "dp" and name in names
    }
    bytes_of_all = sum(4.2 * table.rows * table.dim for table in tables)
    machines = workload.fleet
    device = dataclasses.replace(
        machines.device,
        memory_bytes=1e5 + 40 * workload.batch_size * 1e3 + rng.random() * bytes_of_all,
        host_bytes_per_s=float(rng.choice([1e9, 64e9])),
        host_memory_bytes=float(rng.choice([0.1, 10])) * bytes_of_all + 1,
        disk_bytes_per_s=1e8,
    )
    workload = dataclasses.replace(
        workload,
        fleet=dataclasses.replace(machines, device=device),
        overlap=bool(rng.random() < 0.5),
        dense=DenseLoad(int(rng.choice([0, 10**4])), 1, 8.0),
    )
    return tables, features, forced, workload


def check(seed, request=request):
    """How far the plan is from the best there is, as a ratio; None if that is not
    known."""
    tables, features, forced, workload = request(seed)
    instance = Instance(tables, features, forced, workload)
    optima = []
    for allowed in searched(instance):
        relaxation = Relaxation(instance, allowed)
        ms = all_ms(instance, allowed)
        if ms is None:
            return None
        relaxed = relaxation.solve()
        if len(ms):
            assert relaxed is not None
            assert relaxed.bound_ms <= ms.min() * (1 + 1e-9)
        optima.append(ms.min(initial=np.inf))
    if not np.isfinite(min(optima, default=np.inf)):
        with pytest.raises(
            ValueError, match=r"memory is short|memory and disks have room for"
        ):
            plan_for(workload, tables, features, forced=forced)
        return None
    assert least_bytes(instance) <= instance.memory.limit_bytes
    planned = plan_for(workload, tables, features, forced=forced)
    found = planned.prediction
    assert found.lower_bound_ms <= min(optima) * (1 + 1e-9)
    assert found.step_ms >= min(optima) * (1 - 1e-9)
    again = price(planned.placements, features, workload)
    assert found.step_ms == pytest.approx(again.step_ms, rel=1e-9)
    return found.step_ms / min(optima)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_no_plan_is_below_the_bound_and_ours_is_near_the_best(first):
    ratios = [
        ratio for s in range(first, first + 20) if (ratio := check(s)) is not None
    ]
    assert len(ratios) >= 9  # of others there are too many plans to try all
    assert np.exp(np.log(ratios).mean()) <= NEAR_MS


@pytest.mark.parametrize("seeds", thorough([IN_TIERS, range(100)], [IN_TIERS]), ids=len)
def test_no_plan_in_tiers_is_below_the_bound(seeds):
    ratios = [
        ratio for seed in seeds if (ratio := check(seed, request=in_tiers)) is not None
    ]
    assert len(ratios) >= 6
    assert np.exp(np.log(ratios).mean()) <= NEAR_MS


def test_whole_tables_in_ub_are_plans_too():
    """Their ids are certain, where finer row shards need slack: each of 8 whole on a
    GPU is faster than any split of all."""
    tables = [ej.TableSpec(f"t{i}", 10_000_000, 64) for i in range(8)]
    features = [ej.FeatureSpec(table.name) for table in tables]
    forced = {table.name: ej.ForcedPlacement("ub") for table in tables}
    workload = Workload(ej.fleets.dgx_h100(), 65_536)
    found = plan_for(workload, tables, features, forced=forced)
    whole = [
        dataclasses.replace(each, row_shards=1, column_shards=1, devices=(i,))
        for i, each in enumerate(found.placements)
    ]
    whole_ms = price(whole, features, workload).step_ms
    assert found.prediction.lower_bound_ms <= whole_ms
    assert found.prediction.step_ms <= whole_ms * (1 + 1e-9)


def test_the_relaxation_counts_large_shards_where_memory_is_short():
    """Storages are as large everywhere as on the fullest device: three whole tables of
    three widths, each most of a device's memory, do not fit, though their mean does."""
    workload = Workload(ej.fleets.dgx_h100(), 65_536)
    tables = [
        ej.TableSpec(f"t{width}", int(0.6 * 72e9 / (4 * (width + 1))), width)
        for width in (32, 64, 128)
    ]
    features = [ej.FeatureSpec(table.name) for table in tables]
    instance = Instance(tables, features, {}, workload)
    relaxed = Relaxation(instance).solve()
    assert relaxed is not None
    needed_bytes = relaxed.tables @ instance.shard_bytes
    assert needed_bytes <= instance.memory.limit_bytes * 1.01
    whole = instance.candidates.row_shards * instance.candidates.column_shards == 1
    assert relaxed.tables[whole].sum() < 2
