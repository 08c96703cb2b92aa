"""Ctrl-C and SIGTERM: nothing that was trained is lost, and it is said."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embark_jax.launch.stopping import StoppedError, stopping
from embark_jax.run import experiment
from embark_jax.run.logs import MetricsLog
from tests import runs
from tests.runs import done, embark

SECONDS = 30
CONFIG = """\
name: small
data: {kind: synthetic, dense_features: 2, train_samples: 4096, test_samples: 640}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4, tables: {user: {rows: 50}}}
train: {batch_size: 32, steps: 12, log_every: 1, eval_every: 6}
"""


@pytest.fixture(scope="module", autouse=True)
def as_in_a_terminal():
    """A process that was started in the background may ignore Ctrl-C; so would those
    that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path, CONFIG)


@pytest.fixture
def signal_at(monkeypatch):
    """Sends this process a signal when a step is logged, with a key if one is given."""

    def signal_at(number: int, step: int, key: str = "loss") -> None:
        write = MetricsLog.write

        def write_and_signal(log, at, values):
            write(log, at, values)
            if (at, key in values) == (step, True):
                os.kill(os.getpid(), number)

        monkeypatch.setattr(MetricsLog, "write", write_and_signal)

    yield signal_at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    config = runs.write_config(folder, CONFIG)
    done("train", config, "--workdir", folder / "run")
    return folder / "run"


def checkpoints(workdir: Path) -> list[int]:
    names = [path.name for path in (workdir / "checkpoints").iterdir()]
    return sorted(int(name) for name in names if name.isdecimal())


def test_a_run_ends_with_a_checkpoint(config, whole, tmp_path, signal_at):
    workdir = tmp_path / "run"
    signal_at(signal.SIGTERM, 3)
    outcome = done("train", config, "--workdir", workdir)
    (step,) = checkpoints(workdir)
    assert 3 <= step <= 6, "it may not go on for long"
    assert "SIGTERM: the run ends after this step, with a checkpoint" in outcome.out
    assert (
        f"stopped at step {step} of 12, with a checkpoint to --resume from: "
        f"{workdir}/checkpoints/{step}\n"
    ) in outcome.out
    assert not any("final" in each for each in runs.records(workdir))
    done("train", config, "--workdir", workdir, "--resume")
    assert runs.losses(workdir) == runs.losses(whole)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "step"), [("loss", 6), ("test_auc", 12)])
def test_an_evaluation_is_made_later(config, whole, tmp_path, signal_at, key, step):
    """The evaluation at step 6, and the one at the end, after that at step 12."""
    workdir = tmp_path / "run"
    signal_at(signal.SIGINT, step, key)
    outcome = done("train", config, "--workdir", workdir)
    assert f"stopped at step {step} of 12" in outcome.out
    assert "Ctrl-C again ends it at once" in outcome.out
    assert checkpoints(workdir) == [step]
    tested = [each["step"] for each in runs.records(workdir) if "test_auc" in each]
    assert tested == {6: [], 12: [6, 12]}[step]
    assert not any("final" in each for each in runs.records(workdir))
    done("train", config, "--workdir", workdir, "--resume")
    resumed, undisturbed = (
        [(r["step"], r["test_auc"]) for r in runs.records(folder) if "test_auc" in r]
        for folder in (workdir, whole)
    )
    assert resumed == undisturbed


@pytest.mark.slow
def test_a_search_ends_with_a_run_that_had_just_finished(config, tmp_path, signal_at):
    signal_at(signal.SIGTERM, 12, "final")
    swept = ("search", config, "search.seed=[0, 1]", "--workdir", tmp_path / "all")
    done(*swept)
    (folder,) = (path for path in (tmp_path / "all").iterdir() if path.is_dir())
    assert runs.records(folder)[-1]["final"]


def test_before_the_first_step_there_is_nothing_to_save(config, tmp_path, monkeypatch):
    def ctrl_c(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("Python raises KeyboardInterrupt before this")

    def exits(status):
        raise SystemExit(status)

    monkeypatch.setattr(experiment, "build", ctrl_c)
    monkeypatch.setattr(os, "_exit", exits)
    try:
        outcome = embark("train", config, "--workdir", tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert outcome == (130, "", "interrupted\n")
    assert not (tmp_path / "run").exists()


IN_C = """
import hashlib
from embark_jax.launch.stopping import stopping
with stopping(lambda text: print(text, flush=True)):
    print("begins", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # as compiling, for hours
"""


def test_a_second_ctrl_c_ends_even_what_python_waits_for():
    process = subprocess.Popen(
        [sys.executable, "-c", IN_C], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for expected in ("begins", "Ctrl-C: the run ends", "ended at once"):
            assert process.stdout.readline().startswith(expected)
            process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.communicate()


def test_what_is_asked_is_known_everywhere():
    said, heard = [], threading.Event()

    def say(text):
        said.append(text)
        heard.set()

    with stopping(say) as stop:
        assert not stop.before(0)
        batches = stop.during(iter("ab"))
        assert next(batches) == "a"
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.wait(SECONDS)
        assert stop.before(1)
        with pytest.raises(StoppedError):
            next(batches)
    assert said == ["SIGTERM: the run ends after this step, with a checkpoint"]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_run_in_another_thread_has_no_signals():
    def go_on() -> bool:
        with stopping(print) as stop:
            return stop.before(0)

    with ThreadPoolExecutor(1) as thread:
        assert not thread.submit(go_on).result()


@pytest.mark.slow
def test_a_finished_run_is_evaluated_again(config, whole, tmp_path):
    workdir = shutil.copytree(whole, tmp_path / "run")
    log = workdir / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))
    done("train", config, "--workdir", workdir, "--resume")
    assert runs.records(workdir) == runs.records(whole)
