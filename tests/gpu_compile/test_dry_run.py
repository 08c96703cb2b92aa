"""``embark train --dry-run`` for a fleet that is not here, in a process of its own."""

import re
import subprocess

from tests import runs


def test_the_step_of_a_fleet_is_compiled_and_its_memory_is_the_plans(tmp_path):
    config = runs.write_config(tmp_path)
    options = "fleet=dgx-h100", "mesh={nodes: 2, gpus_per_node: 8}"
    rows = [f"embedding.tables.{name}.rows=4000000" for name in ("user", "item")]
    process = runs.start(
        "train",
        config,
        *options,
        *rows,
        "embedding.dim=64",
        "model.bottom=[64]",
        "train.batch_size=4096",
        "--dry-run",
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "step compiled for 16 absent GPUs" in said
    takes, planned = re.search(
        r"XLA takes ([\d.]+) MB.*the plan says ([\d.]+) MB", said
    ).groups()
    assert abs(float(takes) / float(planned) - 1) < 0.1
    assert re.search(r"row exchange +│ all-to-all +│ \d+ +│ [\d.]+ MB", said)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
