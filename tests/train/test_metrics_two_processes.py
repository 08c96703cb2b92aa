"""Evaluation over batches whose samples lie on devices of two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

PROCESS = """
import sys
import jax
port, index = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from embark_jax.train.metrics import EvalAccumulator, evaluate

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
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), str(index)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for output in outputs:
        assert output.strip().endswith("equal"), output
