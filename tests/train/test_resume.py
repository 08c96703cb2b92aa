"""A run that is killed and resumed goes on as if it had never been killed."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import runs

pytestmark = pytest.mark.slow

STEPS, EVERY = 24, 5
ROWS = 400_000
"""Enough that a checkpoint takes a while to write: 13 MB."""
OVERRIDES = (
    f"embedding.tables.user.rows={ROWS}",
    "embedding.optimizer.kind=adagrad",
    f"train.steps={STEPS}",
    f"train.checkpoint_every={EVERY}",
)
TEMPORARY = "*.orbax-checkpoint-tmp"
TIMES = {"samples_per_s", "window_seconds"}


class Runner:
    """Trains: in a process to be killed, or in this one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._config = runs.write_config(folder)

    def _command(self, workdir: Path, *args) -> tuple[str | Path, ...]:
        return ("train", self._config, *OVERRIDES, "--workdir", workdir, *args)

    def plan(self, out: Path, *changes) -> None:
        runs.done("plan", self._config, *OVERRIDES, *changes, "--out", out)

    def finish(self, workdir: Path, *args) -> str:
        """Runs to the end, with nothing said on stderr; returns stdout."""
        return runs.done(*self._command(workdir, *args)).out

    def kill(self, workdir: Path, is_time, *args) -> None:
        """Kills training with SIGKILL when ``is_time()``, which is then still true."""
        pipe = subprocess.PIPE
        process = runs.start(*self._command(workdir, *args), stdout=pipe, stderr=pipe)
        while True:
            assert process.poll() is None, process.communicate()
            if is_time():
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                if is_time():
                    break
                process.send_signal(signal.SIGCONT)
            time.sleep(0.001)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not any("final" in each for each in runs.records(workdir))


def last_step(workdir: Path) -> int:
    return max(runs.losses(workdir), default=0) if started(workdir) else 0


def started(workdir: Path) -> bool:
    return (workdir / "metrics.jsonl").exists()


def complete(workdir: Path) -> list[int]:
    """Steps of the complete checkpoints: a name without suffix is given at the end."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdigit())


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def whole(runner):
    """Workdir of a run that nothing disturbed."""
    workdir = runner.folder / "whole"
    out = runner.finish(workdir)
    assert f"step {STEPS}: loss" in out
    assert sorted(runs.losses(workdir)) == list(range(1, STEPS + 1))
    return workdir


@pytest.fixture(scope="module")
def killed(runner, whole):
    """Workdir of a run that was killed at some step, after its first checkpoint."""
    workdir = runner.folder / "killed"
    step = random.randrange(EVERY + 1, STEPS * 3 // 4)
    runner.kill(workdir, lambda: last_step(workdir) >= step and complete(workdir))
    print("killed at step", last_step(workdir))
    assert last_step(workdir) < STEPS
    return workdir


def assert_same_run(found: Path, expected: Path) -> None:
    """Bit by bit, but for the time it took."""
    assert runs.losses(found) == runs.losses(expected)
    kept = [
        [{k: v for k, v in each.items() if k not in TIMES} for each in lines]
        for lines in map(runs.records, (found, expected))
    ]
    assert kept[0] == kept[1]
    assert runs.final(found)


def assert_close_runs(found: Path, expected: Path, resumed_at: int) -> None:
    """Equal until it was resumed, and from there on but for rounding."""
    assert (found / "plan.json").read_text() != (expected / "plan.json").read_text()
    losses = runs.losses(expected)
    assert runs.losses(found) == pytest.approx(losses, rel=1e-4)
    for step in range(1, resumed_at + 1):
        assert runs.losses(found)[step] == losses[step]
    for name in ("test_log_loss", "test_calibration"):
        other, mine = runs.final(expected)[name], runs.final(found)[name]
        assert mine == pytest.approx(other, rel=1e-4)


def test_it_goes_on_bit_by_bit(runner, whole, killed, tmp_path):
    workdir = shutil.copytree(killed, tmp_path / "run")
    (*_, newest) = complete(workdir)
    out = runner.finish(workdir, "--resume")
    assert f"resumed at step {newest} of {STEPS}\n" in out
    assert_same_run(workdir, whole)
    assert complete(workdir) == complete(whole)
    for name in ("config.yaml", "plan.json"):
        assert (workdir / name).read_text() == (whole / name).read_text()


def test_it_goes_on_with_another_plan(runner, whole, killed, tmp_path):
    workdir, plan = shutil.copytree(killed, tmp_path / "run"), tmp_path / "plan.json"
    runner.plan(
        plan,
        f"embedding.tables.user={{rows: {ROWS}, cluster: ub, column_shards: 2}}",
        "embedding.tables.item.cluster=rb",
    )
    runner.finish(workdir, "--resume", "--plan", plan)
    assert (workdir / "plan.json").read_text() == plan.read_text()
    assert_close_runs(workdir, whole, complete(killed)[-1])


def test_without_a_checkpoint_it_starts_again(runner, whole, tmp_path):
    workdir = tmp_path / "run"
    runner.kill(
        workdir, lambda: last_step(workdir) > 1, f"train.checkpoint_every={STEPS}"
    )
    assert not complete(workdir)
    assert f"no checkpoint yet: begins at step 0 of {STEPS}\n" in runner.finish(
        workdir, "--resume"
    )
    assert_same_run(workdir, whole)


def test_a_checkpoint_cut_short_is_left_out(runner, whole, tmp_path):
    workdir = tmp_path / "run"
    folder = workdir / "checkpoints"
    runner.kill(workdir, lambda: complete(workdir) and any(folder.glob(TEMPORARY)))
    (cut,) = folder.glob(TEMPORARY)
    (*_, newest) = complete(workdir)
    assert int(cut.name.partition(".")[0]) == newest + EVERY
    out = runner.finish(workdir, "--resume")
    assert f"resumed at step {newest} of {STEPS}\n" in out
    assert_same_run(workdir, whole)
    assert not any(folder.glob(TEMPORARY))


def test_rows_beyond_device_memory_go_on(runner, whole, tmp_path):
    """Killed again and again, wherever it is; at last resumed without a cache, too."""
    table = f"{{rows: {ROWS}, cluster: rb, tier: disk, slots: 2000}}"
    scratch = tmp_path / "scratch"
    cached = f"embedding.tables.user={table}", f"embedding.scratch={scratch}"
    workdir, dice = tmp_path / "run", random.Random(0)
    for goal in (EVERY + 1, STEPS - 8):
        moment = time.monotonic() + dice.uniform(0, 1)
        runner.kill(
            workdir,
            lambda goal=goal, moment=moment: (
                last_step(workdir) >= goal and time.monotonic() > moment
            ),
            *cached,
            *(("--resume",) if workdir.exists() else ()),
        )
        assert not scratch.exists() or not list(scratch.iterdir())
    other = shutil.copytree(workdir, tmp_path / "other")
    runner.finish(workdir, "--resume", *cached)
    runner.finish(other, "--resume")
    for each in (workdir, other):
        assert runs.losses(each) == runs.losses(whole)
        assert runs.final(each)["test_log_loss"] == runs.final(whole)["test_log_loss"]


def test_tables_that_grow_go_on(runner, tmp_path):
    """Killed while the table grows, and in a checkpoint while rows are evicted."""
    table = "slots: 100, max_slots: 600, evict: lfu, evicted: discard"
    growing = (
        f"embedding.tables.user={{rows: {ROWS}, cluster: rb, {table}}}",
        f"embedding.scratch={tmp_path / 'scratch'}",
        "train.eval_every=10",
    )
    runner.finish(tmp_path / "whole", *growing)
    workdir = tmp_path / "run"
    folder = workdir / "checkpoints"
    moments = [
        lambda: last_step(workdir) >= 2,
        lambda: complete(workdir) and any(folder.glob(TEMPORARY)),
    ]
    for is_time in moments:
        resume = ("--resume",) if workdir.exists() else ()
        runner.kill(workdir, is_time, *growing, *resume)
    runner.finish(workdir, "--resume", *growing)
    whole = tmp_path / "whole"
    assert runs.losses(workdir) == runs.losses(whole)
    evaluated = [
        [each["test_log_loss"] for each in runs.records(folder) if "test_auc" in each]
        for folder in (workdir, whole)
    ]
    assert evaluated[0] == evaluated[1]
