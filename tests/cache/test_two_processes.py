"""Processes that train a dynamic table tell each other nothing about batches."""

import pytest

from tests.processes import outputs_of_two

PROGRAM = """
import sys
import jax
port, index = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
import jax.numpy as jnp
import numpy as np
import optax
from jax._src import distributed
import embark_jax as ej
from embark_jax.plans.placement import Placement
from tests.builders import make_plan, make_trainer

class Counting:
    def __init__(self, client):
        self.client, self.calls = client, []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append(name)
            return getattr(self.client, name)(*args, **kwargs)
        return call

jax.devices()  # which takes the client as it is
client = distributed.global_state.client = Counting(distributed.global_state.client)
table = ej.TableSpec.dynamic("user", 4, 16, 64)
placed = [Placement(table, "ub", 2, 1, (0, 1))]
weight = {"weight": jnp.ones(4)}
model = ej.FunctionModel(weight, lambda p, dense, e: e["user"] @ p["weight"])
plan = make_plan([ej.FeatureSpec("user", hotness=2)], placed, 2, 1, 16, 40)
trainer = make_trainer(plan, model, dense_optimizer=optax.sgd(0.1))

class Data:
    def train_batch(self, step, size):
        rng = np.random.default_rng([step])
        ids = rng.integers(-(2**63), 2**63 - 1, (size, 2))
        ids[:, 1] = step % 3 - 1  # a key of all processes, or padding
        labels = rng.integers(0, 2, size).astype(np.float32)
        return ej.Batch(np.zeros((size, 0), np.float32), {"user": ids}, labels)

trainer.fit(Data(), 3, progress=False)
grown = trainer.embeddings.plan.tables[0].slots
before = len(client.calls)
trainer.fit(Data(), 23, progress=False)
print("slots", grown, "calls", len(client.calls) - before)
trainer.whole_state()
print("calls of a checkpoint", len(client.calls) - before)
"""


@pytest.mark.slow
def test_a_step_sends_no_message_through_the_coordination_service():
    """Where each batch has new keys, slots have grown, and rows leave them."""
    for output in outputs_of_two(PROGRAM, timeout_s=240):
        assert "slots 64 calls 0\n" in output, output
        assert "calls of a checkpoint 0" not in output, output
