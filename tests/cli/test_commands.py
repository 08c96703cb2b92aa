"""The ``embark`` command: what it leaves behind, and what it says when it cannot."""

import re
import shutil
from pathlib import Path

import pytest

from embark_jax._base.errors import UserError
from embark_jax._base.object_store import StorageError
from embark_jax.config import reading
from embark_jax.launch.one_host import FAILED, USER_ERROR
from embark_jax.plans.plan import Plan
from embark_jax.run import training
from embark_jax.train.results import NonFiniteLossError
from tests import runs
from tests.runs import assert_refused, done, embark

ONE_DEVICE = ("mesh.nodes=1", "mesh.gpus_per_node=1")


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path)


@pytest.fixture
def earlier(tiny_run, tmp_path):
    """A copy of a run, and a check that nothing in it was changed."""
    workdir = shutil.copytree(tiny_run[1], tmp_path / "earlier")
    before = runs.snapshot(workdir)
    yield workdir
    assert runs.snapshot(workdir) == before


def test_a_run_leaves_all_it_should(tiny_run):
    config, workdir, out = tiny_run
    assert reading.load(workdir / "config.yaml") == reading.load(config, runs.OF_SHARED)
    assert Plan.from_json((workdir / "plan.json").read_text()).devices == 2
    assert sorted(runs.losses(workdir)) == [1, 2, 3, 4, 5, 6]
    evaluated = [each["step"] for each in runs.records(workdir) if "test_auc" in each]
    assert evaluated == [2, 4, 6, 6]
    record = runs.final(workdir)
    assert record["step"] == 6
    assert record["test_samples"] == 1000
    assert record["recompilations"] == 0
    assert any((workdir / "tensorboard").iterdir())
    checkpoints = [path.name for path in (workdir / "checkpoints").glob("[0-9]*")]
    assert sorted(checkpoints) == list("246")
    # A few lines of the plan come first; the rest is on a page.
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("step "))
    assert lines[:2] == [
        "3 tables, 3 features on 1 × 2 devices, batch 64",
        "tables: 1 in RB, 1 in UB, 1 in DP",
    ]
    checkpoints = [line for line in lines[:first] if line.startswith("checkpoint ")]
    assert first - len(checkpoints) <= 8
    report = workdir / "report.html"
    assert f"plan and curves: {report}" in lines[:first]
    page = report.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<img ") == 4  # its curves, and three pictures of the plan
    assert f"{record['test_auc']:.5g}" in page
    assert "3 tables, 3 features on 1 × 2 devices" in page
    # Without a terminal: a line for each record, nothing that moves, 120 columns.
    assert [
        line for line in out.splitlines() if re.match(r"step \d+: loss 0\.\d", line)
    ]
    assert f"{record['test_auc']:.5f}" in out
    assert f"everything is in {workdir}\n" in out
    assert "\x1b" not in out
    assert max(map(len, out.replace(str(workdir), "").splitlines())) <= 120


def test_tensorboard_shows_every_number_of_the_log(tiny_run):
    logged = {
        (record["step"], key): pytest.approx(value, rel=1e-6)
        for record in runs.records(tiny_run[1])
        for key, value in record.items()
        if type(value) in (int, float) and key != "step"
    }
    shown = {
        (event.step, value.tag): value.simple_value
        for event in runs.events(tiny_run[1])
        for value in event.summary.value
    }
    assert shown == logged


@pytest.mark.parametrize(
    ("mesh", "checkpoint", "tolerance"),
    [
        pytest.param((), "", 0, id="its own mesh", marks=pytest.mark.slow),
        pytest.param(ONE_DEVICE, "checkpoints/6", 1e-6, id="1×1"),
    ],
)
def test_a_checkpoint_evaluates_to_the_final_metrics(
    earlier, monkeypatch, mesh, checkpoint, tolerance
):
    found = runs.shown_results(monkeypatch)
    named = earlier / checkpoint, *mesh
    done("evaluate", *named, "--group-by", "user", "--k", "3")
    ranked = [found.pop(f"test_{name}@3") for name in ("ndcg", "recall")]
    assert all(0 < value < 1 for value in (found.pop("test_gauc"), *ranked))
    expected = runs.final(earlier)
    assert found.keys() == {*expected} - {"step", "final", "recompilations"}
    for name, value in found.items():
        # Rounding may swap a few of the pairs that the AUC counts.
        slack = {"abs": 2e-5 if tolerance else 0} if name == "test_auc" else {}
        assert value == pytest.approx(expected[name], rel=tolerance, **slack)


def test_help_says_what_to_run_first():
    outcome = done("--help")
    assert re.findall(r"embark train (\S+)", outcome.out) == ["quickstart"]


def test_doctor_shows_devices_and_versions():
    outcome = done("doctor")
    assert re.search(r"cpu\s+│ cpu\s+│ 8", outcome.out)
    assert re.search(r"embark_jax\s+│ 0\.1\.0", outcome.out)
    assert "auto takes xla: mosaic_gpu needs a GPU; JAX runs on cpu" in outcome.out


def test_a_loss_that_is_not_finite_ends_the_run(config, tmp_path):
    workdir = tmp_path / "run"
    overrides = ["dense_optimizer={kind: sgd, learning_rate: 1e30}", *ONE_DEVICE]
    overrides += ["train.checkpoint_every=1"]
    outcome = embark("train", config, *overrides, "--workdir", workdir)
    assert_refused(
        outcome, "loss is nan at step 2", "dense[2]: min -", "ids of items: "
    )
    assert list(runs.losses(workdir)) == [1]
    assert (workdir / "checkpoints" / "1").is_dir()


def test_a_message_is_printed_as_it_is_and_a_bug_keeps_its_traceback(
    config, monkeypatch
):
    given = f"[red]{'long ' * 40}[/red]\n  dense[0]: \x1b[31m\x07\udcff\r\tä [bold]"
    shown = given.replace("\x1b[31m\x07\udcff\r", "\\x1b[31m\\x07\\udcff\\r")

    def fail(error):
        def train(*_):
            raise error(given)

        monkeypatch.setattr(training, "train", train)
        return embark("train", config)

    for error in (UserError, FileExistsError, NonFiniteLossError):
        assert fail(error) == (USER_ERROR, "", f"error: {shown}\n")
    for error in (PermissionError, StorageError):
        assert fail(error) == (FAILED, "", f"error: {shown}\n")
    for error in (RuntimeError, ValueError, KeyError):
        with pytest.raises(error, match="long long"):
            fail(error)
