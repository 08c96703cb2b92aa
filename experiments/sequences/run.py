"""Times and counts the bytes of a step's embeddings, with and without padding.

The padded step has room for the longest of every sequence, and its events fill it: all
that is no event is an id of padding. The other has the room that the planner gives.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import embark_jax as ej
from embark_jax.embedding.device_batch import BATCH
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


def step_of(plan: ej.Plan, ids: dict[str, np.ndarray]):
    """Returns the compiled step, and its arguments."""
    collection = ej.EmbeddingCollection(plan, plan.make_mesh())
    optimizer = ej.RowwiseAdagrad(0.1)

    def step(storages, state, ids):
        routes = collection.route(ids, {})
        rows = collection.lookup(storages, routes)
        storages, state = collection.update(
            storages, state, routes, rows, optimizer, jnp.int32(1), jnp.bool_(True)
        )
        return storages, state, collection.fits(routes)

    by_sample = jax.sharding.NamedSharding(collection.mesh, BATCH)
    arguments = (
        collection.init(jax.random.key(0)),
        collection.init_optimizer(optimizer),
        jax.device_put(ids, by_sample),
    )
    compiled = jax.jit(step).lower(*arguments).compile()
    assert compiled(*arguments)[2]
    return compiled, arguments


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
    plans = {
        "padded": dataclasses.replace(packed, capacities=of_storages),
        "packed": packed,
    }
    ids = batch_of(packed)
    steps = {name: step_of(plan, ids) for name, plan in plans.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, (step, arguments) in steps.items():
            start = time.process_time()
            jax.block_until_ready(step(*arguments))
            times[name].append(time.process_time() - start)
    result = {}
    for name, (step, _) in steps.items():
        memory, cost = step.memory_analysis(), step.cost_analysis()
        assert memory is not None
        assert cost is not None
        result[name] = {
            "events_of_a_device": sum(plans[name].events.values()),
            "cpu_s": round(statistics.median(times[name]), 3),
            "accessed_mb": round(cost["bytes accessed"] / 1e6),
            "temporaries_mb": round(memory.temp_size_in_bytes / 1e6),
            "exchange_buffers_mb": round(exchanged_bytes(plans[name]) / 1e6),
        }
    mean = np.mean([(v >= 0).sum(axis=1) for n, v in ids.items() if "past" in n])
    result["mean_length"] = round(float(mean))
    name = f"result_{options.devices}_devices.json"
    Path(__file__).with_name(name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
