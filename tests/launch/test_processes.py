"""What two processes agree on before they compile."""

import os
import subprocess
import sys

import pytest

from embark_jax.launch.process_group import free_port

PROCESS = """
import sys
from embark_kernels import _implementation, check
from embark_jax.config import ExperimentConfig
from embark_jax.launch import processes
from embark_jax.launch.worker import WorkerOptions
from embark_jax.run.planning import why_plain_xla

port, index = sys.argv[1:]
options = WorkerOptions(f"localhost:{port}", 2, int(index), resume=False, link=-1)
data = {"kind": "synthetic"}
config = ExperimentConfig(data=data, mesh={"nodes": 2}, train={"batch_size": 2})
processes.join(options, config)
_implementation._why_not_mosaic_gpu = lambda: ""
check.problem = lambda: "sum_bags differs" if index == "1" else ""
print([why_plain_xla()])
"""


@pytest.mark.slow
def test_kernels_that_fail_in_one_process_are_taken_in_none():
    port = free_port()

    def start(index: int) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), str(index)],
            env={**os.environ, "XLA_FLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    running = [start(index) for index in range(2)]
    try:
        said = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    for text in said:
        assert text.strip().splitlines()[-1] == "['sum_bags differs']", text
