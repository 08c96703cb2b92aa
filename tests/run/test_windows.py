"""Training on time windows, beside the same done by hand with a trainer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embark_jax.config import reading
from embark_jax.data import PreparedData, WindowsData
from embark_jax.run import experiment
from tests import runs
from tests.days import DAYS, config_of, prepare_days, prepare_table, table_of
from tests.runs import done, embark

BEGINS = range(0, 100 * DAYS, 100)


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    return prepare_days(tmp_path_factory.mktemp("windows"))


def by_hand(config: Path, days: Path) -> tuple[list, list]:
    """Losses of all steps, and AUC of each window before it is trained on."""
    setup = experiment.build(reading.load(config))
    trainer = setup.trainer()
    losses, aucs = [], []
    for begin in BEGINS:
        data = PreparedData(days, seed=0, window=begin)
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
    losses, aucs = by_hand(config, days)
    assert list(runs.losses(tmp_path / "run").values()) == losses
    names = [str(begin) for begin in BEGINS]
    assert aucs_of(tmp_path / "run") == dict(zip(names, aucs, strict=True))
    final = runs.final(tmp_path / "run")
    assert final["test_auc"] == aucs[-1]
    assert final["step"] == DAYS * (150 // 32)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "each before it was trained on" in report
    # A checkpoint at the end of each window, to export.
    checkpoints = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"4", "8", "12"} <= checkpoints


ROOM = "{rows: 200}"
DISCARDING = "{max_slots: 60, slots: 60, evicted: discard}"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "user"), [(2, ROOM), (4, ROOM), (6, DISCARDING)])
def test_it_resumes_inside_a_window_and_between_two(days, tmp_path, first, user):
    """Also where some rows were discarded."""
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
    begins = [window.begin for window in data.windows]
    assert begins == [*range(0, 300, 50)]
    times = table["time"].to_numpy()
    for window in data.windows:
        samples = data.open(window)
        begin = window.begin
        wanted = ((times >= begin) & (times < begin + 50)).sum()
        assert samples.train_samples == wanted
    total = sum(data.open(window).train_samples for window in data.windows)
    assert total == len(table) == PreparedData(out).train_samples


def test_windows_of_dates_are_seconds(tmp_path):
    days = np.array(["2024-05-03", "2024-05-01", "2024-05-01T23:59"], "datetime64[ms]")
    table = pa.table({"label": [0, 1, 0], "user": ["a", "b", "c"], "time": days})
    out = prepare_table(tmp_path / "raw", table, tmp_path / "one", window=86_400)
    assert [window.begin for window in WindowsData(out).windows] == [
        int(np.datetime64(day, "s").astype(int)) for day in ("2024-05-01", "2024-05-03")
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.batch_size=151"], "151, more than the 150 training samples"),
        (["train.eval_every=3"], "train.eval_every: must be left out with data.kind"),
        (
            ["model={kind: two_tower, items: [item], uniform_negatives: 2}"],
            "model.uniform_negatives: must be 0 with data.kind windows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(days, tmp_path, overrides, message):
    config = config_of(tmp_path, days)
    outcome = embark("train", config, *overrides, "--workdir", tmp_path / "run")
    runs.assert_refused(outcome, message)
