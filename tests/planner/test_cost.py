"""Each term of the cost model, worked by hand."""

import dataclasses
import itertools

import numpy as np
import pytest

from embark_jax.planner import price as price_plan
from embark_jax.planner.cost.program import ProgramModel
from embark_jax.planner.cost.work import Peak
from embark_jax.planner.request.dense import DenseLoad
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import fleet, traffic
from embark_jax.plans.placement import Placement, StorageKind
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner.toy import DEVICE, IDEAL, MODEL, TOY, USE, WORKLOAD, one


def test_an_exchange_sends_a_part_to_each_device():
    # Of 8 parts of 100 bytes one stays, 3 stay in the node, 4 leave it.
    assert traffic.all_to_all_bytes(800, 2, 4) == traffic.LinkBytes(300, 400)
    assert traffic.all_to_all_bytes(800, 1, 1) == traffic.LinkBytes(0, 0)


def test_a_sum_over_devices_goes_around_twice():
    # 2 · 800 · 7/8 around 8 devices; half of it leaves the node, over 4 ports.
    assert traffic.all_reduce_bytes(800, 2, 4) == traffic.LinkBytes(1400, 200)
    assert traffic.all_reduce_bytes(800, 2, 1) == traffic.LinkBytes(0, 800)


@pytest.mark.parametrize("cluster", ["dp", "rb", "ub"])
def test_rows_in_16_bits_are_read_and_written_in_half_the_bytes(cluster):
    def moved(dtype):
        table = dataclasses.replace(USE.table, dtype=dtype)
        use = dataclasses.replace(USE, table=table)
        candidate = one(use, WORKLOAD, cluster)
        works = [*MODEL.everywhere_work(candidate)]
        works += [] if cluster == "dp" else MODEL.owner_work(candidate)
        return {
            (work.phase, work.what): float(np.sum(work.memory_bytes)) for work in works
        }

    whole, half = moved("float32"), moved("float16")
    assert whole.keys() == half.keys()
    # SGD reads and writes rows. Rows of UB travel as float32.
    shares = {("update", "rows"): 0.5}
    shares["lookup", "rows"] = 1.0 if cluster == "ub" else 0.5
    for name, each in whole.items():
        assert half[name] == pytest.approx(shares.get(name, 1.0) * each)


def test_the_price_of_an_rb_storage():
    price = MODEL.storage_price(StorageKind("rb", 16))
    # Partial sums of 4 · 16 · 10 · 8 = 5120 bytes: half crosses the network, 2.56 µs
    # (NVLink has less to do); memory 4 times, 20.48 µs; gradients the same.
    expected_us = 2 * (2.56 + 20.48)
    assert price[Peak.SUMS] == pytest.approx(expected_us / 1e3)
    # Slot and bag to 8 devices: 64 bytes, 0.032 + 0.256 µs; 8 keys sorted, 0.544, and
    # 10 values of each around it, 0.32.
    expected_us = 0.032 + 0.256 + 0.544 + 0.32
    assert price[Peak.IDS] == pytest.approx(expected_us / 1e3)
    # A weight travels beside slot and bag.
    weighted = MODEL.storage_price(StorageKind("rb", 16, weighted=True))
    assert weighted[Peak.IDS] - price[Peak.IDS] == pytest.approx((0.016 + 0.128) / 1e3)
    # Three exchanges of 15 µs.
    assert price[Peak.USE] == weighted[Peak.USE] == pytest.approx(3 * 15 / 1e3)


def test_the_price_of_a_ub_storage():
    price = MODEL.storage_price(StorageKind("ub", 16))
    # Slots, 32 bytes: 0.016 + 0.128 µs; sorted, 0.544, with 12 values, 0.384; rows and
    # gradients, 512 bytes: 0.256 + 2.048; rows read at the owner, 0.512.
    expected_us = 0.016 + 0.128 + 0.544 + 0.384 + 2 * (0.256 + 2.048) + 0.512
    assert price[Peak.IDS] == pytest.approx(expected_us / 1e3)
    assert price[Peak.SUMS] == 0
    assert price[Peak.USE] == pytest.approx(3 * 15 / 1e3)


def test_the_price_of_a_hierarchical_storage():
    flat = MODEL.storage_price(StorageKind("rb", 16))
    price = MODEL.storage_price(StorageKind("rb", 16, exchange="hierarchical"))
    # 5120 bytes of sums, of which 3/4 stay in the node: 1.92 µs on its links, 20.48 in
    # memory; of a sum of a node 1280 bytes, half of which leave it: 0.64 + 5.12.
    expected_us = 2 * (1.92 + 20.48)
    assert price[Peak.SUMS] == pytest.approx(expected_us / 1e3)
    assert price[Peak.NODE] == pytest.approx(2 * (0.64 + 5.12) / 1e3)
    # The 64 bytes of an id are sent twice: 48 bytes inside, 32 between nodes.
    more_us = (0.024 + 0.256 + 0.032 + 0.256) - (0.032 + 0.256)
    assert price[Peak.IDS] - flat[Peak.IDS] == pytest.approx(more_us / 1e3)
    # Three exchanges inside, of 11 µs, and three between nodes.
    assert price[Peak.USE] == pytest.approx(3 * (11 + 15) / 1e3)


def test_sums_of_a_node_are_counted_once():
    table, feature = TableSpec("t", 1000, 16), FeatureSpec("t")
    # Column shard 0 on both nodes, 1 twice on the second.
    placed = [Placement(table, "rb", 2, 2, (0, 4, 5, 6), "hierarchical")]
    priced = price_plan(placed, [feature], WORKLOAD)
    loads = priced.loads
    assert loads.node_sums.tolist() == [[1, 2]]
    assert loads.own[0].tolist() == [[1, 0, 0, 0, 1, 1, 1, 0]]
    loads.add(0, priced.owners[0], times=-1)
    assert not loads.node_sums.any()


def test_an_all_to_all_takes_longer_the_more_it_sends_to():
    """A message to each device of other nodes, a message to each other node."""
    per_message = dataclasses.replace(IDEAL, message_us=2.0)
    for nodes in (2, 16):
        machines = dataclasses.replace(TOY, nodes=nodes, efficiency=per_message)
        model = ProgramModel(Workload(machines, 80 * nodes))
        flat = model.storage_price(StorageKind("rb", 16))[Peak.USE]
        assert flat == pytest.approx(3 * (15 + 2 * 4 * (nodes - 1)) / 1e3)
        kind = StorageKind("rb", 16, exchange="hierarchical")
        staged = model.storage_price(kind)[Peak.USE]
        assert staged == pytest.approx(3 * (11 + 15 + 2 * (nodes - 1)) / 1e3)


@pytest.mark.parametrize("nodes", [2, 8, 16])
def test_hierarchical_sends_less_between_nodes_where_row_shards_span_them(nodes):
    """8 features of 10 ids each of one table over all GPUs."""
    machines = fleet.dgx_h100(nodes)
    workload = Workload(machines, 65_536, 1.1)
    table, devices = TableSpec("t", 100_000_000, 128), tuple(range(machines.devices))
    features = [FeatureSpec(f"f{i}", "t", 10) for i in range(8)]
    sent_bytes, step_ms = {}, {}
    for exchange in ("flat", "hierarchical"):
        placed = [Placement(table, "rb", len(devices), 1, devices, exchange)]
        priced, model = price_plan(placed, features, workload), ProgramModel(workload)
        sent = [model.link_bytes(item) for item in priced.work_items()]
        sent_bytes[exchange] = sum(np.max(np.sum(s.network, axis=0)) for s in sent)
        step_ms[exchange] = priced.step_ms
    assert sent_bytes["flat"] > 4 * sent_bytes["hierarchical"]
    assert step_ms["flat"] > step_ms["hierarchical"]


@pytest.mark.parametrize("cluster", ["dp", "rb", "ub"])
def test_each_storage_has_small_kernels(cluster):
    efficiency = dataclasses.replace(IDEAL, kernel_us=2.0)
    slow = dataclasses.replace(TOY, efficiency=efficiency)
    model = ProgramModel(dataclasses.replace(WORKLOAD, fleet=slow))
    storage = StorageKind(cluster, 8)
    more = (
        model.storage_price(storage)[Peak.USE] - MODEL.storage_price(storage)[Peak.USE]
    )
    assert more == pytest.approx(29 * 0.002)


def test_owners_read_every_id_in_rb_and_update_unique_rows():
    unique = 1000 * (1 - (1 - 1 / 1000) ** 240) / 2
    # 120 ids of a row of 32 bytes, in lookup and for bag gradients; touched rows are
    # read and written.
    lookup_ms = gradients_ms = 120 * 32 / 1e6
    update_ms = unique * 64 / 1e6
    found = MODEL.owner_ms(one(USE, WORKLOAD, "rb", 2))
    expected = np.array([[lookup_ms], [gradients_ms], [update_ms], [0.0]])
    np.testing.assert_allclose(found, np.tile(expected, 2), rtol=1e-6)
    found = MODEL.owner_ms(one(USE, WORKLOAD, "ub", 2))
    expected = np.array([[0.0], [0.0], [update_ms], [0.0]])
    np.testing.assert_allclose(found, np.tile(expected, 2), rtol=1e-6)


def test_rows_that_slots_lack_come_over_the_host_link_and_others_leave():
    # Two row shards of 200 slots for 1000 rows, all alike: in the long run 60 % of a
    # batch's rows are not in slots.
    unique = 1000 * (1 - (1 - 1 / 1000) ** 240)
    missed = 0.6 * unique / 2
    device = dataclasses.replace(DEVICE, host_bytes_per_s=5e8, disk_bytes_per_s=1e8)
    machines = dataclasses.replace(WORKLOAD.fleet, device=device)
    workload = dataclasses.replace(WORKLOAD, fleet=machines)
    for tier, evict in itertools.product(("host", "disk"), ("lru", "lfu")):
        table = dataclasses.replace(USE.table, tier=tier, slots=400, evict=evict)
        use = dataclasses.replace(USE, table=table)
        assert use.hit_rate(80) == pytest.approx(0.4, abs=0.01)
        candidate = one(use, workload, "ub", 2)
        *_, update_ms, store_ms = ProgramModel(workload).owner_ms(candidate)
        moved = missed * 32
        # Rows of 32 bytes in and out; two programs read and write both.
        np.testing.assert_allclose(
            update_ms, (unique / 2 * 64 + 4 * moved) / 1e6, rtol=0.02
        )
        expected = 2 * moved / 5e5
        if tier == "disk":
            expected += 2 * missed * 4096 / 1e5
        np.testing.assert_allclose(store_ms, expected, rtol=0.02)


def test_row_gradients_are_in_memory_only_where_rows_are_in_pieces():
    row_wise = ProgramModel(dataclasses.replace(WORKLOAD, optimizer="rowwise_adagrad"))
    unique = 1000 * (1 - (1 - 1 / 1000) ** 240)
    for model, columns, width in ((MODEL, 2, 0), (row_wise, 1, 0), (row_wise, 2, 4)):
        candidate = one(USE, WORKLOAD, "ub", 1, columns)
        _, gradients_ms, *_ = model.owner_ms(candidate)
        rows = unique + 3 * candidate.room_for_rows  # zeroed, squared and read as well
        assert gradients_ms == pytest.approx(rows * width * 4 / 1e6)


def test_whole_rows_in_pieces_need_two_exchanges_of_squares():
    row_wise = dataclasses.replace(WORKLOAD, optimizer="rowwise_adagrad")
    split, whole = StorageKind("ub", 16, split=True), StorageKind("ub", 16)
    element_wise = MODEL.storage_price(whole)
    assert MODEL.storage_price(split) == element_wise
    model = ProgramModel(row_wise)
    more = model.storage_price(split)
    less = model.storage_price(whole)
    assert more[Peak.USE] - less[Peak.USE] == pytest.approx(2 * 15 / 1e3)
    # 32 bytes there and back; 38 values of each of 8 places moved around the exchange.
    expected_us = 2 * (0.016 + 0.128) + 38 * 0.032
    assert more[Peak.IDS] - less[Peak.IDS] == pytest.approx(expected_us / 1e3)
    assert less == element_wise


def test_what_every_device_does():
    ids, pooled_bytes = 10 * 3, 10 * 32
    # RB sorts 2-byte keys and handles 11 values an id, for each column shard.
    bucket_bytes = (26 + 44) * ids
    in_rb = MODEL.everywhere_ms(one(USE, WORKLOAD, "rb"))
    assert in_rb == pytest.approx((bucket_bytes + pooled_bytes) / 1e6)
    element_wises = MODEL.everywhere_ms(one(USE, WORKLOAD, "rb", 1, 2))
    assert element_wises == pytest.approx((2 * bucket_bytes + pooled_bytes) / 1e6)
    # UB sorts 4-byte keys, and handles 27 values an id.
    unique_bytes = (68 + 108) * ids
    in_ub = MODEL.everywhere_ms(one(USE, WORKLOAD, "ub"))
    assert in_ub == pytest.approx((unique_bytes + 2 * 32 * ids + pooled_bytes) / 1e6)


def test_what_every_device_does_for_a_replicated_table():
    ids, pooled_bytes = 10 * 3, 10 * 32
    # DP groups its own 30 ids, is told the 240 ids of the batch, groups them, and sums
    # as many rows of 8 values, in a buffer that it zeroes: 960 and 7680 bytes, both
    # twice around, on 2e9 B/s.
    told, reduced = 240 * 4, 240 * 32
    touched = 1000 * (1 - (1 - 1 / 1000) ** 240)
    memory = pooled_bytes + 2 * 32 * ids + (68 + 64) * ids + (68 + 92) * 240
    memory += 4 * (told + reduced) + reduced + touched * 64
    link_ms = 2 * (told + reduced) * 7 / 8 / 2e6
    assert MODEL.everywhere_ms(one(USE, WORKLOAD, "dp")) == pytest.approx(
        memory / 1e6 + link_ms
    )
    # Of 100 rows it sums all, and a flag each, which the step's capacities take along.
    small = dataclasses.replace(USE, rows=100)
    touched = 100 * (1 - (1 - 1 / 100) ** 240)
    memory = pooled_bytes + 2 * 32 * ids + (68 + 64) * ids
    memory += 100 * (4 * 36 + 32) + touched * 64
    assert MODEL.everywhere_ms(one(small, WORKLOAD, "dp")) == pytest.approx(
        memory / 1e6 + 2 * 100 * 36 * 7 / 8 / 2e6
    )


@pytest.mark.parametrize(("cluster", "read"), [("rb", 0), ("ub", 30), ("dp", 30)])
def test_embeddings_and_their_gradients_have_the_data_type_of_the_model(cluster, read):
    """On the device of the samples, but for means, which are scaled in float32."""
    dense = DenseLoad(0, 0, 0.0, embedding_dtype="bfloat16")
    in_16_bits = dataclasses.replace(WORKLOAD, dense=dense)
    means = dataclasses.replace(USE, summed=False)
    before, sums, scaled = (
        one(use, workload, cluster)
        for use, workload in ((USE, WORKLOAD), (USE, in_16_bits), (means, in_16_bits))
    )
    saved_ms = before.everywhere_ms - sums.everywhere_ms
    assert saved_ms == pytest.approx(2 * 8 * (10 + read) / 1e6)
    saved_bytes = before.everywhere_bytes - sums.everywhere_bytes
    assert (saved_bytes == 2 * 8 * 10).all()
    assert scaled.everywhere_ms == before.everywhere_ms
    assert (scaled.everywhere_bytes == before.everywhere_bytes).all()


def test_a_look_ahead_hides_links_but_no_kernels():
    """Only where there are dense layers, and only of ids."""
    dense = DenseLoad(parameters=10, states=1, activation_bytes=0.0)
    ahead = dataclasses.replace(WORKLOAD, overlap=True)
    hidden = ProgramModel(dataclasses.replace(ahead, dense=dense))
    for kind in (StorageKind("rb", 16), StorageKind("ub", 16)):
        whole, less = MODEL.storage_price(kind), hidden.storage_price(kind)
        assert ProgramModel(ahead).storage_price(kind) == whole
        # One exchange of three, of 15 µs.
        assert whole[Peak.USE] - less[Peak.USE] == pytest.approx(0.015)
        # 8 or 4 bytes of an id to 8 devices, half of which crosses the network.
        id_bytes = 8 if kind.cluster == "rb" else 4
        assert whole[Peak.IDS] - less[Peak.IDS] == pytest.approx(id_bytes * 8 / 2 / 1e6)
    candidate = one(USE, WORKLOAD, "dp")
    # 240 ids travel in a ring, twice, on NVLink.
    link_ms = 2 * 240 * 4 * 7 / 8 / 2e6
    less_ms = MODEL.everywhere_ms(candidate) - hidden.everywhere_ms(candidate)
    assert less_ms == pytest.approx(link_ms)


def test_a_look_ahead_hides_as_much_as_the_dense_layers_last():
    """100 parameters take 600 operations a sample, 6 µs of 10 samples. 8 × 10 × 1.25
    ids of 8 bytes, half of which cross the network, take 0.4 µs; of 40 times as many, 6
    / 16 are hidden."""
    dense = DenseLoad(parameters=100, states=1, activation_bytes=0.0)
    ahead = dataclasses.replace(WORKLOAD, overlap=True, dense=dense)
    for ids, share in ((8, 1.0), (320, 0.375)):
        model = ProgramModel(dataclasses.replace(ahead, sample_ids=ids))
        less_ms = MODEL.storage_price(StorageKind("rb", 16))[Peak.USE]
        less_ms -= model.storage_price(StorageKind("rb", 16))[Peak.USE]
        assert less_ms == pytest.approx(share * 0.015)


def test_padding_of_bags_is_sorted_but_not_read():
    half = dataclasses.replace(USE, filled=0.5)
    full_ms = MODEL.everywhere_ms(one(USE, WORKLOAD, "ub"))
    half_ms = MODEL.everywhere_ms(one(half, WORKLOAD, "ub"))
    assert full_ms - half_ms == pytest.approx(2 * 32 * 15 / 1e6)


def test_a_single_device_exchanges_nothing():
    alone = ProgramModel(Workload(fleet.Fleet(DEVICE, efficiency=IDEAL), 80))
    assert alone.storage_price(StorageKind("dp", 8))[Peak.USE] == 0
