"""Training on time windows, beside the same done by hand with a trainer."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embark_jax.config import reading
from embark_jax.data import DataError, PreparedData, WindowsData
from embark_jax.data import manifest as manifests
from embark_jax.run import experiment
from tests import runs
from tests.days import DAYS, config_of, prepare_days, prepare_table, table_of
from tests.runs import done, embark


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    return prepare_days(tmp_path_factory.mktemp("windows"))


def by_hand(config: Path, folders) -> tuple[list, list]:
    """Losses of all steps, and AUC of each window before it is trained on."""
    setup = experiment.build(reading.load(config))
    trainer = setup.trainer()
    losses, aucs = [], []
    for folder in folders:
        data = PreparedData(folder, seed=0)
        aucs.append(trainer.evaluate(data.in_file_order("train", 32)).auc)
        steps = data.train_samples // 32
        batches = [data.train_batch(step, 32) for step in range(steps)]
        losses += [result.loss for result in trainer.iterate_batches(batches)]
    return losses, aucs


def aucs_of(run: Path) -> dict:
    records = runs.records(run)
    return {r["window"]: r["validation_auc"] for r in records if "window" in r}


@pytest.mark.slow
def test_each_window_is_evaluated_on_before_it_is_trained_on(days, tmp_path):
    config = config_of(tmp_path, days)
    done("train", config, "--workdir", tmp_path / "run")
    losses, aucs = by_hand(config, sorted(days.iterdir()))
    assert list(runs.losses(tmp_path / "run").values()) == losses
    names = [f"day {day}" for day in range(DAYS)]
    assert aucs_of(tmp_path / "run") == dict(zip(names, aucs, strict=True))
    final = runs.final(tmp_path / "run")
    assert final["test_auc"] == aucs[-1]
    assert final["step"] == DAYS * (150 // 32)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "each before it was trained on" in report
    # A checkpoint at the end of each window, to export; scoring knows all values.
    checkpoints = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"4", "8", "12"} <= checkpoints
    encoding = manifests.read(tmp_path / "run" / "encoding")
    assert encoding.table_rows == PreparedData(days / "day 2").table_rows


ROOM = "{rows: 200}"
DISCARDING = "{max_slots: 60, slots: 60, evicted: discard}"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "user"), [(2, ROOM), (4, ROOM), (6, DISCARDING)])
def test_it_resumes_inside_a_window_and_between_two(tmp_path, first, user):
    """Also where some rows were discarded."""
    days = prepare_days(tmp_path, name="2024-05-1{}")
    config = config_of(tmp_path, days, f"embedding.tables.user={user}")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    done("train", config, "--workdir", whole)
    done("train", config, f"train.steps={first}", "--workdir", halves)
    done("train", config, "--workdir", halves, "--resume")
    assert runs.losses(halves) == runs.losses(whole)
    assert aucs_of(halves) == aucs_of(whole)


def test_one_set_is_cut_by_its_times(tmp_path):
    table = pa.concat_tables([table_of(day) for day in (2, 0, 1)])
    rng = np.random.default_rng(0)
    table = table.take(rng.permutation(len(table)))
    out = prepare_table(tmp_path / "raw", table, tmp_path / "one", window=50)
    data = WindowsData(out)
    names = [window.name for window in data.windows]
    assert names == [str(begin) for begin in range(0, 300, 50)]
    times = table["time"].to_numpy()
    for window in data.windows:
        samples = data.open(window)
        begin = int(window.name)
        wanted = ((times >= begin) & (times < begin + 50)).sum()
        assert samples.train_samples == wanted
    total = sum(data.open(window).train_samples for window in data.windows)
    assert total == len(table) == PreparedData(out).train_samples


def test_windows_of_dates_are_seconds(tmp_path):
    days = np.array(["2024-05-03", "2024-05-01", "2024-05-01T23:59"], "datetime64[ms]")
    table = pa.table({"label": [0, 1, 0], "user": ["a", "b", "c"], "time": days})
    out = prepare_table(tmp_path / "raw", table, tmp_path / "one", window=86_400)
    assert [data.name for data in WindowsData(out).windows] == [
        str(int(np.datetime64(day, "s").astype(int)))
        for day in ("2024-05-01", "2024-05-03")
    ]


@pytest.mark.slow
def test_a_resumed_run_trained_on_the_windows_that_are_there(days, tmp_path):
    folder, run = tmp_path / "days", tmp_path / "run"
    shutil.copytree(days / "day 0", folder / "day 0")
    config = config_of(tmp_path, folder)
    done("train", config, "--workdir", run)
    shutil.copytree(days / "day 1", folder / "day 1")
    done("train", config, "--workdir", run, "--resume")
    assert list(aucs_of(run)) == ["day 0", "day 1"]
    prepare_table(tmp_path / "raw", table_of(2), folder / "day 2")  # not extended
    runs.assert_refused(
        embark("train", config, "--workdir", tmp_path / "other"),
        "day 2: values of table 'user' have other rows in window day",
        "prepare it with --extend",
    )
    shutil.rmtree(folder / "day 2")
    shutil.rmtree(folder / "day 0")
    runs.assert_refused(
        embark("train", config, "--workdir", run, "--resume"),
        "window day 0 has other samples or steps, or is not there, but the run has",
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["embedding.tables.user.rows=50"], "day 2: needs 56 rows of table 'user'"),
        (["train.batch_size=151"], "151, more than the 150 training samples"),
        (["train.eval_every=3"], "train.eval_every: must be left out with data.kind"),
        (
            ["model={kind: two_tower, items: [item], uniform_negatives: 2}"],
            "model.uniform_negatives: must be 0 with data.kind windows, in which",
        ),
    ],
)
def test_what_does_not_fit_is_refused(days, tmp_path, overrides, message):
    config = config_of(tmp_path, days)
    outcome = embark("train", config, *overrides, "--workdir", tmp_path / "run")
    runs.assert_refused(outcome, message)


def test_windows_are_in_order_and_unfinished_ones_not_there_yet(days, tmp_path):
    for name in ("10", "2", "1"):
        shutil.copytree(days / "day 0", tmp_path / "numbers" / name)
    found = WindowsData(tmp_path / "numbers").windows
    assert [window.name for window in found] == ["1", "2", "10"]
    folder = tmp_path / "days"
    shutil.copytree(days, folder)
    (folder / "day 1" / "data.json").unlink()
    assert [window.name for window in WindowsData(folder).windows] == ["day 0"]
    with pytest.raises(DataError, match="has no window yet, must be a folder of"):
        WindowsData(tmp_path / "none")
