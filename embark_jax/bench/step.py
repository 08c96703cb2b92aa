"""Times the train step of an experiment on this machine, and its work on embeddings.

Batches lie on the devices before the clock starts: the step is timed, not the input
pipeline. A round dispatches all batches one after the other, and waits for the devices
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from embark_jax._base.config import ConfigError
from embark_jax.bench.timing import median_s
from embark_jax.data import Batch
from embark_jax.run.experiment import Experiment
from embark_jax.train.device_batch import put_batch
from embark_jax.train.results import result_of
from embark_jax.train.trainer import Trainer

BATCHES = 8
"""Number of different batches, so that no cache holds all the rows of the next one."""
ROUNDS = 7


def draw_batches(setup: Experiment) -> list[Batch]:
    """The first checked batches of an experiment's data."""
    check, size = setup.checker(), setup.config.train.batch_size
    return [check(setup.dataset.train_batch(i, size)) for i in range(BATCHES)]


def measure_step(
    setup: Experiment,
    batches: Sequence[Batch],
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times training steps and, alone, their work on embeddings.

    Timed alone, the embeddings get the gradient of half their squared sum, which is the
    rows themselves. Every round trains on all batches.

    Args:
      setup: the experiment; ``launch.processes.make_host_devices`` was called for
        its config.
      batches: checked batches of the experiment's batch size.
      rounds: number of timed rounds, after two to warm up, of which the first compiles;
        results are medians.
      say: called with what is measured next.

    Returns:
      Medians in milliseconds per step: ``step_ms``; ``route_ms``, for ids alone;
      ``lookup_ms``, with routing; ``lookup_and_update_ms``, with the sums of row
      gradients and the update as well. Also ``samples_per_s`` of the whole step,
      ``loss`` of the first batch of each round, and what was measured.

    Raises:
      ConfigError: if a table is cached.
    """
    cached = [table.name for table in setup.plan.tables if table.cached]
    if cached:
        raise ConfigError(
            f"embedding.tables.{cached[0]}.tier: how long a step waits for rows of "
            "cached tables depends on the batches before it; train, and read "
            "samples_per_s and cache_late in metrics.jsonl"
        )
    say("compiling the step")
    trainer = setup.trainer()
    list(trainer.iterate_batches(batches))  # compiles; capacities grow to hold them all
    plan, mesh = trainer.embeddings.plan, trainer.embeddings.mesh
    on_devices = [put_batch(batch, plan, mesh) for batch in batches]
    rotated = [*on_devices[1:], on_devices[0]]
    following = dict(zip(map(id, on_devices), rotated, strict=True))
    first_outputs = []

    def step(batch):
        output = trainer.start(batch, following[id(batch)])
        if batch is on_devices[0]:
            first_outputs.append(output)
        return output

    def timed(name: str, function: Callable) -> float:
        say(f"timing {name}")
        seconds = median_s(lambda: [function(batch) for batch in on_devices], rounds)
        return 1e3 * seconds / len(batches)

    step_ms = timed("the step", step)
    capacities = trainer.embeddings.plan.capacities
    losses = [result_of(output, capacities).loss for output in first_outputs]
    functions = _embedding_functions(trainer)
    result = {name: timed(name.removesuffix("_ms"), f) for name, f in functions.items()}
    device = jax.devices()[0]
    clusters = trainer.embeddings.clusters.values()
    return {
        "samples_per_s": trainer.batch_size / step_ms * 1e3,
        "step_ms": step_ms,
        **result,
        "loss": losses,
        "name": setup.config.name,
        "batch_size": trainer.batch_size,
        "devices": plan.devices,
        "device_kind": device.device_kind,
        "kernels": " ".join(sorted({c.implementation for c in clusters})),
        "rounds": rounds,
        "batches": len(batches),
        "jax": jax.__version__,
    }


def _embedding_functions(trainer: Trainer) -> dict[str, Callable]:
    """Functions that take a batch on the devices; the last one trains the tables."""
    collection, optimizer = trainer.embeddings, trainer.optimizers.rows
    dtype = trainer.embedding_dtype

    @jax.jit
    def route(batch):
        return collection.route_batch(batch)

    @jax.jit
    def lookup(storages, batch):
        return collection.lookup(storages, collection.route_batch(batch), dtype)

    def update(storages, state, batch):
        routes = collection.route_batch(batch)
        embeddings = collection.lookup(storages, routes, dtype)
        number, apply = jnp.int32(1), jnp.bool_(True)
        updated = collection.update(
            storages, state, routes, embeddings, optimizer, number, apply
        )
        return updated, embeddings

    donating_update = jax.jit(update, donate_argnums=(0, 1))

    def lookup_and_update(batch):
        state = trainer.state
        updated, embeddings = donating_update(
            state.storages, state.embedding_state, batch
        )
        storages, states, _ = updated
        trainer.state = state._replace(storages=storages, embedding_state=states)
        return embeddings

    return {
        "route_ms": route,
        "lookup_ms": lambda batch: lookup(trainer.state.storages, batch),
        "lookup_and_update_ms": lookup_and_update,
    }
