"""Times and counts the bytes of a step's embeddings, with and without padding.

*Padded*, batch and step have room for the longest of every sequence: all that is no
event is an id of padding. *Packed on devices*, the batch is the same, and the step has
the room that the planner gives. *Packed*, host batch and copy have events alone.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import embark_jax as ej
from embark_jax.data import Batch, BatchChecker, Jagged
from embark_jax.embedding.device_batch import DeviceBatch, put_batch, route_batch
from embark_jax.statistics.accesses import FeatureAccess, Statistics

LONGEST, MEAN, DIM = 4086, 2663, 64
FULL_SHARE = 0.4535
"""Share of sequences that are full; others have up to ``SHORT`` events, all alike."""
SHORT = 2964
ROWS = {"item": 1_000_000, "artist": 130_000, "album": 340_000}


def plan_of(devices: int, batch: int) -> ej.Plan:
    tables = [ej.TableSpec(name, rows, DIM) for name, rows in ROWS.items()]
    features = [
        spec
        for name in ROWS
        for spec in (
            ej.FeatureSpec(f"past_{name}", name, LONGEST, "none"),
            ej.FeatureSpec(name),
        )
    ]
    access = FeatureAccess(MEAN, LONGEST, 0)
    lengths = Statistics(features={f.name: access for f in features if f.sequence})
    return ej.plan(
        tables,
        features,
        ej.fleets.this_machine(1, devices),
        batch,
        zipf_exponent=1.1,
        statistics=lengths,
        forced=dict.fromkeys(ROWS, ej.ForcedPlacement("ub", devices)),
    )


def batch_of(plan: ej.Plan) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    samples = plan.batch_size
    short = rng.integers(0, SHORT + 1, samples)
    lengths = np.where(rng.random(samples) < FULL_SHARE, LONGEST, short)
    ids = {}
    for feature in plan.features:
        shape = samples, feature.hotness
        drawn = np.minimum(rng.zipf(1.1, shape), ROWS[feature.table]) - 1
        if feature.sequence:
            drawn[np.arange(LONGEST)[None] >= lengths[:, None]] = -1
        ids[feature.name] = drawn.astype(np.int32)
    return ids


def batches_of(plan: ej.Plan) -> dict[str, Batch]:
    """Returns the same samples padded and jagged, of which none is checked."""
    ids = batch_of(plan)
    samples = plan.batch_size
    jagged = {
        name: Jagged.of(values, values >= 0) if values.shape[1] > 1 else values
        for name, values in ids.items()
    }
    none = np.empty((samples, 0), np.float32)
    labels = np.zeros(samples, np.float32)
    return {"padded": Batch(none, ids, labels), "jagged": Batch(none, jagged, labels)}


def host_bytes(batch: Batch) -> int:
    """Bytes of the ids and lengths of a batch on the host."""
    columns = [
        (ids.values, ids.length, ids.begin) if isinstance(ids, Jagged) else (ids,)
        for ids in batch.ids.values()
    ]
    return sum(array.nbytes for column in columns for array in column)


def copied_bytes(batch: DeviceBatch) -> int:
    return batch.words.nbytes + (0 if batch.events is None else batch.events.nbytes)


def step_of(plan: ej.Plan, batch: Batch):
    """Returns a function that copies the batch to the devices, the compiled step, and
    its other arguments."""
    collection = ej.EmbeddingCollection(plan, plan.make_mesh())
    optimizer = ej.RowwiseAdagrad(0.1)

    def put():
        return put_batch(batch, collection.mesh, plan.batch_size, room=plan.events)

    def step(storages, state, batch):
        routes = route_batch(collection, batch)
        rows = collection.lookup(storages, routes)
        storages, state = collection.update(
            storages, state, routes, rows, optimizer, jnp.int32(1), jnp.bool_(True)
        )
        return storages, state, collection.fits(routes)

    arguments = (
        collection.init(jax.random.key(0)),
        collection.init_optimizer(optimizer),
    )
    compiled = jax.jit(step).lower(*arguments, put()).compile()
    assert compiled(*arguments, put())[2]
    return put, compiled, arguments


def exchanged_bytes(plan: ej.Plan) -> int:
    """Ids, rows and gradients in the buffers of a device."""
    capacity = sum(c for name, c in plan.capacities.items() if name.startswith("ub"))
    return 4 * plan.devices * capacity * (1 + 2 * DIM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.devices)
    packed = plan_of(options.devices, options.batch)
    storages = {storage.name for storage in packed.storages}
    of_storages = {n: c for n, c in packed.capacities.items() if n in storages}
    padded = dataclasses.replace(packed, capacities=of_storages)
    batches = batches_of(packed)
    inputs = {
        "padded": (padded, batches["padded"]),
        "packed_on_devices": (packed, batches["padded"]),
        "packed": (packed, batches["jagged"]),
    }
    steps = {name: step_of(*given) for name, given in inputs.items()}
    checks = {
        f"check_{name}": functools.partial(BatchChecker(packed.features, ROWS), batch)
        for name, batch in batches.items()
    }
    times: dict[str, list[float]] = collections.defaultdict(list)

    def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = jax.block_until_ready(function(*arguments))
        times[name].append(time.process_time() - start)
        return result

    for _ in range(options.rounds):
        for name, (put, step, arguments) in steps.items():
            on_devices = timed(f"put_{name}", put)
            timed(f"step_{name}", step, *arguments, on_devices)
        for name, check in checks.items():
            start = time.process_time()
            check()
            times[name].append(time.process_time() - start)
    result: dict[str, Any] = {}
    for name, (put, step, _) in steps.items():
        plan, batch = inputs[name]
        memory, cost = step.memory_analysis(), step.cost_analysis()
        assert memory is not None
        assert cost is not None
        result[name] = {
            "host_batch_mb": round(host_bytes(batch) / 1e6, 2),
            "copied_mb": round(copied_bytes(put()) / 1e6, 2),
            "events_of_a_device": sum(plan.events.values()),
            "accessed_mb": round(cost["bytes accessed"] / 1e6),
            "temporaries_mb": round(memory.temp_size_in_bytes / 1e6),
            "exchange_buffers_mb": round(exchanged_bytes(plan) / 1e6),
        }
    result["cpu_s_least_median_most"] = {
        name: [round(f(of_name), 4) for f in (min, statistics.median, max)]
        for name, of_name in times.items()
    }
    ids = batches["padded"].ids
    past = [np.asarray(v) for n, v in ids.items() if "past" in n]
    mean = np.mean([(v >= 0).sum(axis=1) for v in past])
    result["mean_length"] = round(float(mean))
    name = f"result_{options.devices}_devices.json"
    Path(__file__).with_name(name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
