"""A dry run does all but train, and leaves nothing."""

import re

import jax
import pytest

from tests import runs
from tests.runs import assert_refused, done, embark

pytestmark = pytest.mark.slow


def test_it_says_what_a_run_takes_and_leaves_nothing(tmp_path):
    config, workdir = runs.write_config(tmp_path), tmp_path / "run"
    said = done("train", config, "--dry-run", "--workdir", workdir).out
    assert "data: 4,096 training samples; the first 64 follow all rules" in said
    assert "step compiled for 8 devices" in said
    assert re.search(r"XLA takes [\d.]+ kB, [\d.]+ kB of it for temporaries", said)
    for phase in ("id exchange", "row exchange", "gradient exchange"):
        assert re.search(rf"{phase} +│ all-to-all +│ 2 +│ [\d.]+ (k?B|bytes)", said)
    assert re.search(r"sums over all devices +│ all-reduce +│ 1 +│", said)
    assert "a run would write into" in said
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
    # The rows of a checkpoint: three tables of dim 4, with an accumulator each row.
    (shown,) = re.findall(r"checkpoints of about ([\d.]+) kB every 2 steps", said)
    parameters = 3 * 8 + 8 + 8 * 4 + 4 + (6 + 4) * 8 + 8 + 8 + 1
    assert float(shown) == pytest.approx(
        (1620 * 5 * 4 + 4 * parameters) / 1e3, rel=0.02
    )


def test_what_would_stop_a_run_stops_it(tmp_path):
    config, workdir = runs.write_config(tmp_path), tmp_path / "run"
    done("train", config, "train.steps=1", "--workdir", workdir)
    before = runs.snapshot(workdir)
    dry = ("train", config, "--dry-run", "--workdir")
    assert_refused(embark(*dry, workdir), "already holds a run")
    assert_refused(embark(*dry, tmp_path / "a", "model.bottom=[8]"), "has dim 4, must")
    absent = embark(*dry, tmp_path / "a", "fleet=dgx-h100", "mesh.nodes=2")
    assert_refused(absent, "pip install 'embark_jax[gpu-compile]'")
    assert runs.snapshot(workdir) == before


def test_rows_elsewhere_need_no_more_than_their_slots(tmp_path):
    """The routes of cached tables are made outside of the step."""
    config, workdir = runs.write_config(tmp_path), tmp_path / "run"
    table = "embedding.tables.user."
    keys = f"{table}tier=host", f"{table}slots=200"
    said = done("train", config, "--dry-run", *keys, "--workdir", workdir).out
    assert "step compiled for 8 devices" in said
    assert re.search(r"row exchange +│ all-to-all", said)
    assert not re.search("id exchange +│", said)


def test_epochs_need_no_data(tmp_path):
    config = "configs/experiments/movielens_100k/two_tower.yaml"
    options = f"data.path={tmp_path / 'absent'}", "train.epochs=2"
    with jax.numpy_dtype_promotion("standard"):  # which Adam needs
        said = done("train", config, "--dry-run", *options, "--workdir", tmp_path / "a")
    assert "the data are not here" in said.out
    assert "step compiled for 1 devices" in said.out
