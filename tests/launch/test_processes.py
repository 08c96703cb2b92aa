"""What two processes agree on before they compile."""

import json
import os
import subprocess
import sys

import pytest
from embark_kernels import verdict

from embark_jax.launch.process_group import free_port

PROCESS = """
import sys
from embark_kernels import LookupConfig, tuning, verdict
from embark_jax.config import ExperimentConfig
from embark_jax.launch import processes
from embark_jax.launch.worker import WorkerOptions

port, index = sys.argv[1:]
options = WorkerOptions(f"localhost:{port}", 2, int(index), resume=False, link=-1)
data = {"kind": "synthetic"}
config = ExperimentConfig(data=data, mesh={"nodes": 2}, train={"batch_size": 2})
processes.join(options, config)
print(tuning.tuned("key", LookupConfig(1, 1)), [verdict.why_not_checked()])
"""


@pytest.mark.slow
def test_the_tuned_blocks_and_the_verdict_of_process_0_count(tmp_path):
    port = free_port()

    def start(index: int) -> subprocess.Popen:
        folder = tmp_path / str(index)
        folder.mkdir()
        blocks = {"bags_per_block": 8 + index, "rows_in_flight": 4}
        (folder / "tuned.json").write_text(json.dumps({"cpu": {"key": blocks}}))
        failed = ["sum_bags"] * index
        found = {"cpu": {**verdict.versions(), "failed": failed}}
        (folder / "verdicts.json").write_text(json.dumps(found))
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), str(index)],
            env={**os.environ, "EMBARK_KERNELS_CACHE": str(folder), "XLA_FLAGS": ""},
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
        last = text.strip().splitlines()[-1]
        assert last == "LookupConfig(bags_per_block=8, rows_in_flight=4) ['']", text
