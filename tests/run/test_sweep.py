"""Sweeps: which runs they are made of, what is kept, and what the table says."""

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from embark_jax.config import reading
from embark_jax.run import training, trials
from tests import runs
from tests.run.trials_in_name import CONFIG, rows, train_in_name
from tests.runs import done, embark

SWEPT = ("sweep.seed=[0, 1]", "sweep.embedding.optimizer.learning_rate=[0.5, 1e-3]")


@pytest.fixture
def config(tmp_path) -> Path:
    return runs.write_config(tmp_path, CONFIG)


def records(config) -> list[dict] | None:
    """Of a training in name only: its AUC is 0.5 plus a tenth of the seed, and the
    smaller rate diverges with seed 1."""
    if config.seed == 1 and config.embedding.optimizer.learning_rate == 1e-3:
        return None
    auc = 0.5 + config.seed / 10
    return [{"step": 2, "final": True, "test_auc": auc, "test_log_loss": 0.7}]


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    return train_in_name(monkeypatch, records)


def test_each_run_is_a_training_with_its_values(config, tmp_path):
    config.write_text(CONFIG + "sweep: {seed: [3, 4], model.bottom: [[8, 4]]}\n")
    workdir = tmp_path / "sweep"
    outcome = done("sweep", config, "train.steps=1", "--workdir", workdir)
    results = rows(workdir)
    assert [(row["seed"], row["model.bottom"]) for row in results] == [
        ("3", "[8, 4]"),
        ("4", "[8, 4]"),
    ]
    for row in results:
        folder = workdir / row["folder"]
        expected = reading.load(
            config,
            [
                "sweep=null",
                "train.steps=1",
                f"seed={row['seed']}",
                f"model.bottom={row['model.bottom']}",
            ],
        )
        assert reading.load(folder / "config.yaml") == expected
        assert float(row["test_auc"]) == runs.final(folder)["test_auc"]
    aucs = [float(row["test_auc"]) for row in results]
    mean, spread = np.mean(aucs), abs(aucs[0] - aucs[1]) / 2**0.5
    assert f"│ [8, 4] │ 2 │ {mean:.5f} ± {spread:.5f} │" in " ".join(
        outcome.out.split()
    )


def test_finished_runs_are_kept_and_diverged_ones_tried_again(
    config, trained, tmp_path
):
    workdir = tmp_path / "sweep"
    outcome = done("sweep", config, *SWEPT, "--workdir", workdir)
    assert trained == [
        f"seed={seed},embedding.optimizer.learning_rate={rate}"
        for seed in (0, 1)
        for rate in (0.5, 0.001)
    ]
    table = " ".join(outcome.out.split())
    assert "│ 0.5 │ 2 │ 0.55000 ± 0.07071 │" in table
    assert "│ 0.001 │ 2 │ 0.50000 1 diverged │" in table
    before = rows(workdir)
    assert before[-1]["diverged"] == "loss is nan at step 2"
    assert before[-1]["test_auc"] == ""

    del trained[:]
    again = embark("sweep", config, *SWEPT, "--workdir", workdir)
    runs.assert_refused(again, "is not empty: pass --resume")
    assert not trained
    again = done("sweep", config, *SWEPT, "--workdir", workdir, "--resume")
    assert trained == ["seed=1,embedding.optimizer.learning_rate=0.001"]
    assert rows(workdir) == before

    log = workdir / "seed=0,embedding.optimizer.learning_rate=0.5" / "metrics.jsonl"
    log.write_text("junk\n" + log.read_text())  # which its run is to mend
    del trained[:]
    again = done("sweep", config, *SWEPT, "--workdir", workdir, "--resume")
    assert trained[0] == log.parent.name


def test_a_folder_with_another_config_is_refused(config, trained, tmp_path):
    workdir = tmp_path / "sweep"
    done("sweep", config, *SWEPT, "--workdir", workdir)
    del trained[:]
    args = ("train.steps=3", "--workdir", workdir, "--resume")
    outcome = embark("sweep", config, *SWEPT, *args)
    runs.assert_refused(outcome, "sweep.yaml: is of another sweep")
    (workdir / "sweep.yaml").unlink()  # as if it never was there
    outcome = embark("sweep", config, *SWEPT, *args)
    runs.assert_refused(outcome, "holds a run of another config")
    assert not trained


def test_a_folder_of_another_sweep_or_a_search_is_refused(config, trained, tmp_path):
    """Its results would be overwritten; a sweep with a longer list is the same one."""
    workdir = tmp_path / "sweep"
    args = ("--workdir", workdir, "--resume")
    done("sweep", config, "sweep.seed=[0]", *args)
    before = runs.snapshot(workdir)
    for swept in (SWEPT, ("sweep.embedding.optimizer.learning_rate=[0.5]",)):
        outcome = embark("sweep", config, *swept, *args)
        runs.assert_refused(outcome, "sweep.yaml: is of another sweep, whose results")
    searched = ("search.train.steps={low: 1, high: 2}", "train.eval_every=1")
    outcome = embark("search", config, *searched, *args)
    runs.assert_refused(outcome, "sweep.yaml: is of another sweep, whose results")
    assert runs.snapshot(workdir) == before

    whole = (workdir / "sweep.yaml").read_text()
    (workdir / "sweep.yaml").write_text(whole[: len(whole) // 2] + ":")
    outcome = embark("sweep", config, "sweep.seed=[0]", *args)
    runs.assert_refused(outcome, "sweep.yaml", "delete it if they are of this sweep")
    (workdir / "sweep.yaml").unlink()

    del trained[:]
    done("sweep", config, "sweep.seed=[0, 2]", *args)
    assert trained == ["seed=2"]
    assert [row["seed"] for row in rows(workdir)] == ["0", "2"]


def test_one_value_written_in_two_ways_is_listed_twice(config, trained, tmp_path):
    swept = "sweep.embedding.optimizer.learning_rate=[1, 1.0]"
    outcome = embark("sweep", config, swept, "--workdir", tmp_path / "sweep")
    runs.assert_refused(outcome, "lists embedding.optimizer.learning_rate=1 twice")
    assert not trained


def test_values_that_make_no_name_of_a_folder(config, trained, tmp_path):
    workdir = tmp_path / "sweep"
    names = ["a" * 240, "a" * 300, "a" * 301, "two\nlines", "nu\0l", "../.."]
    swept = f"sweep.name={json.dumps(names)}"
    done("sweep", config, swept, "--workdir", workdir)
    assert trained[0] == f"name={names[0]}"
    assert trained[-1] == "name=..-.."
    assert all(re.fullmatch("name=[0-9a-f]{16}", name) for name in trained[1:5])
    for folder, name in zip(trained, names, strict=True):
        assert reading.load(workdir / folder / "config.yaml").name == name


def test_results_are_whole_at_any_time(config, trained, monkeypatch, tmp_path):
    """What is read here is what a process that is killed then leaves behind."""
    path, states = tmp_path / "sweep" / "results.csv", []
    write = csv.DictWriter.writerows

    def writerows(writer, lines):
        states.append(path.read_text() if path.exists() else None)
        write(writer, lines)
        states.append(path.read_text() if path.exists() else None)

    monkeypatch.setattr(csv.DictWriter, "writerows", writerows)
    args = ("sweep.seed=[0, 1, 2]", "--workdir", tmp_path / "sweep")
    done("sweep", config, *args)
    states.append(path.read_text())
    assert [state and len(state.splitlines()) for state in states] == [
        None,
        None,
        2,
        2,
        3,
        3,
        4,
    ]


def test_a_finished_run_whose_config_is_gone_is_not_trusted(config, trained, tmp_path):
    workdir = tmp_path / "sweep"
    args = (config, "sweep.seed=[0, 1]", "--workdir", workdir, "--resume")
    done("sweep", *args)
    (workdir / "seed=1" / "config.yaml").unlink()
    del trained[:]
    done("sweep", *args)
    assert trained == ["seed=1"]  # which refuses it if there is a checkpoint


def test_a_run_that_was_told_to_end_ends_the_sweep(config, monkeypatch, tmp_path):
    folders = []
    monkeypatch.setattr(
        training, "train", lambda _, workdir, *__: folders.append(workdir)
    )
    done("sweep", config, *SWEPT, "--workdir", tmp_path / "sweep")
    assert len(folders) == 1


def test_gin_lists_the_same_values(tmp_path, config):
    gin = tmp_path / "tiny.gin"
    gin.write_text(
        "ExperimentConfig.data = @SyntheticConfig()\n"
        "ExperimentConfig.sweep = {'seed': [0, 1], 'train.steps': [5]}\n"
    )
    overrides = ["sweep.seed=[0, 1]", "sweep.train.steps=[5]"]
    assert reading.load(gin).sweep == reading.load(config, overrides).sweep


def test_a_run_that_was_told_to_end_lets_no_others_begin(config, monkeypatch, tmp_path):
    begun = []

    def train_apart(_, folder):
        begun.append(folder.name)
        time.sleep(0.5 * (folder.name == "seed=0"))  # so that the second ends first

    monkeypatch.setattr(trials, "_train_apart", train_apart)
    args = ("sweep.seed=[0, 1, 2, 3, 4, 5, 6, 7]", "--workdir", tmp_path / "sweep")
    done("sweep", config, *args, "--jobs", "2")
    assert begun == ["seed=0", "seed=1"]


def killed(config, folder) -> None:
    """Stands for a run whose memory is needed by somebody else."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_whose_process_is_killed_is_named(config, monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "_train_logged", killed)
    args = ("sweep.seed=[0, 1]", "--workdir", tmp_path / "sweep", "--jobs", "2")
    outcome = embark("sweep", config, *args)
    runs.assert_refused(
        outcome, "seed=0: the process that trained it was killed", "seed=0.log"
    )


@pytest.mark.slow
def test_runs_end_with_a_checkpoint_when_their_command_is_killed(config, tmp_path):
    options = (config, "sweep.seed=[0, 1]", "train.steps=1000", "train.log_every=5")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    command = ("sweep", *options, "--jobs", "2", "--workdir")
    process = runs.start(*command, cut, stdout=subprocess.DEVNULL)
    folders = [cut / "seed=0", cut / "seed=1"]
    wait_for(lambda: any(map(Path.read_text, cut.glob("*/metrics.jsonl"))))
    process.kill()
    process.wait()
    shown = [folder.with_name(f"{folder.name}.log") for folder in folders]
    # The second may not have begun to train.
    wait_for(lambda: any("stopped at step" in log.read_text() for log in shown))
    wait_for(lambda: all(map(is_free, folders)))
    assert not (cut / "results.csv").exists()
    done(*command, cut, "--resume")
    done(*command, whole)
    assert rows(cut) == rows(whole)


def wait_for(condition, seconds: int = 120) -> None:
    """Fails after so many seconds without it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_free(folder: Path) -> bool:
    """Whether no process writes checkpoints of a run: each locks their folder."""
    if not (folder / "checkpoints").exists():
        return True
    lock = os.open(folder / "checkpoints", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


@pytest.mark.slow
def test_runs_at_the_same_time_give_what_runs_in_turn_do(config, tmp_path):
    swept = "sweep.seed=[0, 1]"
    for name, options in (("turn", ()), ("jobs", ("--jobs", "2"))):
        done("sweep", config, swept, "--workdir", tmp_path / name, *options)
    assert rows(tmp_path / "jobs") == rows(tmp_path / "turn")
    shown = (tmp_path / "jobs" / "seed=1.log").read_text()
    assert "test metric" in shown
