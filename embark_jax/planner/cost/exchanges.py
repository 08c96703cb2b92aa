"""The exchanges of a sharded storage: what travels, and the size of its buffers.

This describes what ``embark_jax.embedding`` compiles to; tests compare it with compiled
programs, byte by byte. A buffer has messages to all devices. Slots are int32 whatever
the type of the ids: 64-bit ids become a device and a slot before they travel, but for
keys of cached tables, of which the owner alone knows the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from embark_jax.planner.cost.rates import Rates
from embark_jax.planner.cost.work import Peak, Work
from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.plans.options import WireFormat
from embark_jax.plans.storage import StorageKind
from embark_jax.plans.wire import VALUE_BYTES

Carried = tuple[str, str, dict[Peak, float]]
"""A phase, what travels in it, and bytes of the buffer for a unit of each peak: of sums
and rows those of one receiver."""


def exchange_work(
    storage: StorageKind, workload: Workload
) -> Iterator[tuple[Peak, Work]]:
    """Yields the collectives of every device for a unit of each peak that sizes their
    buffers; the first of each is its latency."""
    fleet, rates = workload.fleet, Rates(workload.fleet)
    for phase, what, unit_bytes in _carried(storage, workload):
        for reach in storage.of_exchange.reaches(fleet.nodes, fleet.gpus_per_node):
            work = Work(phase, what, collective="all_to_all", reach=reach)
            latency_us = rates.of(reach).exchange_us
            yield Peak.USE, dataclasses.replace(work, latency_ms=latency_us / 1e3)
            for peak, buffer_bytes in unit_bytes.items():
                if peak == Peak.SUMS and reach == "rail":
                    # Between nodes the sums of a node's devices travel as one.
                    yield Peak.NODE, work.in_buffer(fleet.nodes * buffer_bytes)
                else:
                    yield peak, work.in_buffer(fleet.devices * buffer_bytes)


def _carried(storage: StorageKind, workload: Workload) -> Iterator[Carried]:
    """Yields what travels, in the order of the step."""
    wire, value_bytes = workload.wire, traffic.WORD_BYTES
    by_key = storage.tier != "device"
    ids, ids_bytes = ("keys", 2 * value_bytes) if by_key else ("slots", value_bytes)

    def row(form: WireFormat) -> float:
        return VALUE_BYTES[form] * storage.width

    if storage.of_cluster.pools_at_owner:
        bags = ", bags, weights" if storage.weighted else ", bags"
        ids_bytes += value_bytes * (1 + storage.weighted)
        yield "id exchange", ids + bags, {Peak.IDS: ids_bytes}
        samples = workload.device_batch
        yield "row exchange", "partial sums", {Peak.SUMS: row(wire.rows) * samples}
        sums_bytes = row(wire.gradients) * samples
        yield "gradient exchange", "bag gradients", {Peak.SUMS: sums_bytes}
    else:
        # One place more says how many keys there are.
        head: dict[Peak, float] = {Peak.USE: ids_bytes} if by_key else {}
        yield "id exchange", ids, head | {Peak.IDS: ids_bytes}
        yield "row exchange", "rows", {Peak.IDS: row(wire.rows)}
        yield "gradient exchange", "row gradients", {Peak.IDS: row(wire.gradients)}
    if storage.split and workload.row_wise:
        for squares in ("squares of column shards", "squares of rows"):
            yield "square exchange", squares, {Peak.IDS: value_bytes}
