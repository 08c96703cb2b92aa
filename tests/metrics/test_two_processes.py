"""Evaluation over batches whose samples lie on devices of two processes."""

from tests.processes import outputs_of_two

PROCESS = """
import sys
import jax
port, index = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from embark_jax.metrics.pointwise import EvalAccumulator, evaluate

rng = np.random.default_rng(0)
labels, logits = (rng.random(12) < 0.5).astype(np.float32), rng.standard_normal(12)
mesh = jax.make_mesh((2,), ("gpu",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("gpu"))
accumulator = EvalAccumulator()
for start, valid in ((0, 8), (8, 4)):
    batch = np.zeros(8, np.float32)
    batch[:valid] = logits[start : start + 8]
    on_devices = jax.make_array_from_callback((8,), sharding, lambda i: batch[i])
    assert not on_devices.is_fully_addressable
    accumulator.add(np.resize(labels[start : start + 8], 8), on_devices, valid)
assert accumulator.result() == evaluate(labels, logits.astype(np.float32))
print("equal")
"""


def test_all_processes_get_the_metrics_of_the_whole_set():
    outputs = outputs_of_two(PROCESS, timeout_s=120)
    for output in outputs:
        assert output.strip().endswith("equal"), output
