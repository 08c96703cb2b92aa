"""``embark train --dry-run`` for a fleet that is not here, in a process of its own."""

import re
import subprocess

import pytest

from tests import runs

UNITS = {"MB": 1e6, "GB": 1e9}


def planned_over_taken(said: str) -> float:
    """Memory of a device by the plan, as a share of what XLA takes."""
    pattern = r"XLA takes ([\d.]+) (.B),.*the plan says ([\d.]+) (.B)"
    taken, unit, planned, its_unit = re.search(pattern, said).groups()
    return float(planned) * UNITS[its_unit] / (float(taken) * UNITS[unit])


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
    assert planned_over_taken(said) == pytest.approx(1, abs=0.1)
    assert re.search(r"row exchange +│ all-to-all +│ \d+ +│ [\d.]+ MB", said)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


STEPS = {
    "movielens_100k/deepfm": (8, 65536, 64),
    "movielens_100k/finalmlp": (1, 65536, 64),
    "movielens_100k/dcn": (8, 65536, 64),
    "movielens_100k/mmoe": (8, 65536, 64),
    "movielens_100k/din": (1, 65536, 64),
    "avazu/wide_deep": (8, 65536, 17),
}
"""GPUs, samples of each, and dim of the tables."""


SCORES = {"movielens_100k/sasrec_leave_one_out": (1, 1024, 64)}
"""Of a step that takes minutes to compile."""


@pytest.mark.parametrize(
    ("config", "step"),
    [
        *STEPS.items(),
        *(pytest.param(*s, marks=pytest.mark.slow) for s in SCORES.items()),
    ],
)
def test_memory_of_dense_layers_is_the_plans(tmp_path, config, step):
    """At the size of a GPU, where they take most of it."""
    gpus, samples, dim = step
    process = runs.start(
        "train",
        f"configs/experiments/{config}.yaml",
        "fleet=dgx-h100",
        f"mesh.gpus_per_node={gpus}",
        f"train.batch_size={gpus * samples}",
        f"embedding.dim={dim}",
        f"--workdir={tmp_path}",
        "--dry-run",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert planned_over_taken(said) == pytest.approx(1, abs=0.1)
