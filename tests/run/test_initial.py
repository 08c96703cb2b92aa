"""Runs that start from the model of another run; dictionaries say which rows match."""

import dataclasses
import json
from pathlib import Path

import chex
import numpy as np
import pyarrow as pa
import pytest

from embark_jax._base.config import ConfigError
from embark_jax._base.files import read_arrow
from embark_jax.checkpoint import Checkpointer
from embark_jax.config import reading
from embark_jax.data.columns import Columns
from embark_jax.plans.tables import HASHED_KEYS
from embark_jax.run import experiment, initial
from tests import runs
from tests.builders import tables_and_states
from tests.days import prepare_table
from tests.runs import done

COLUMNS = Columns(dense={"price": "log"})
CONFIG = """\
name: daily
data: {kind: prepared, path: PATH}
model: {kind: dlrm, bottom: [8, 4], top: [8, 1]}
mesh: {nodes: 1, gpus_per_node: 2}
embedding:
  dim: 4
  optimizer: {kind: adam}
  tables:
    user: {cluster: rb}
    item: {cluster: ub}
train: {batch_size: 32, steps: 6, checkpoint_every: 3}
"""


def rows_of_day(day: int, count: int = 400) -> dict:
    rng = np.random.default_rng(day)
    users = rng.zipf(1.3, count) % 60 + 9 * day
    return {
        "label": rng.integers(0, 2, count),
        "user": [f"u{user}" for user in users],
        "item": rng.zipf(1.4, count) % 40 + 5 * day,
        "price": rng.uniform(1, 9, count),
    }


def prepare_day(folder: Path, day: int, extend: Path | None = None, **options) -> Path:
    rows = pa.table(rows_of_day(day))
    return prepare_table(
        folder, rows, folder / f"day {day}", extend, COLUMNS, **options
    )


def config_of(folder: Path, data: Path, *overrides: str) -> Path:
    """A config file for prepared data."""
    changed = reading.load(
        runs.write_config(folder, CONFIG.replace("PATH", str(data))), overrides
    )
    path = folder / f"{data.name}.yaml"
    reading.save(changed, path)
    return path


def trained(folder: Path, data: Path, *overrides: str) -> Path:
    """A run of six steps, and its folder."""
    run = folder / f"run of {data.name}"
    done("train", config_of(folder, data), *overrides, "--workdir", run)
    return run


def started(folder: Path, data: Path, run: Path, *overrides: str):
    """A trainer that starts from a run, and one that does not; and what was said."""
    config = reading.load(
        config_of(folder, data), [f"train.init_from={run}", *overrides]
    )
    setup = experiment.build(config)
    setup = dataclasses.replace(
        setup, first_step=initial.first_step(config, folder / "new", False)
    )
    trainer, said = setup.trainer(), []
    (folder / "new").mkdir(exist_ok=True)
    initial.start(setup, trainer, folder / "new", said.append)
    return trainer, setup.trainer(), said


def arrays_by_value(trainer, data: Path, table: str) -> dict:
    """For each value of a table its row and all of its optimizer's states."""
    arrays = tables_and_states(trainer)
    rows = [arrays[name] for name in sorted(arrays) if name[0] == table]
    keys = read_arrow(data / "vocabulary" / f"{table}.arrow")["key"].to_pylist()
    values = ["missing", "rare", *keys]
    whole = np.concatenate(rows, axis=1)[: len(values)]
    return dict(zip(values, whole, strict=True))


def loaded(run: Path):
    config = reading.load(run / "config.yaml")
    setup = experiment.build(config)
    trainer = setup.trainer()
    with Checkpointer(run / "checkpoints", setup.identity, keep=None) as checkpoints:
        trainer.load(checkpoints)
    return trainer, setup


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory):
    """Prepared data and a run on them."""
    folder = tmp_path_factory.mktemp("yesterday")
    data = prepare_day(folder, 0)
    return data, trained(folder, data)


@pytest.mark.slow
def test_where_nothing_is_new_it_goes_on_bit_for_bit(yesterday, tmp_path):
    data, run = yesterday
    resumed, setup = loaded(run)
    begun, _, said = started(tmp_path, data, run)
    assert begun.step == resumed.step == 6
    batches = [setup.dataset.train_batch(step, 32) for step in range(20, 25)]
    both = [
        [(result.step, result.loss) for result in trainer.iterate_batches(batches)]
        for trainer in (resumed, begun)
    ]
    assert both[0] == both[1]
    assert [line for line in said if line.endswith("rows come over, 0 are new")]


OTHER_PLAN = "embedding.tables.user.cluster=ub", "embedding.tables.item.hot_rows=9"
CACHED = "embedding.tables.user.tier=host", "embedding.tables.user.slots=40"


@pytest.mark.parametrize(
    "overrides",
    [
        OTHER_PLAN,
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(CACHED, marks=pytest.mark.slow),
    ],
)
def test_the_first_rows_are_those_of_the_run_before(yesterday, tmp_path, overrides):
    data, run = yesterday
    today = prepare_day(tmp_path, 1, data)
    before = loaded(run)[0]
    begun, blank, said = started(tmp_path, today, run, *overrides)
    for table in ("user", "item"):
        old = arrays_by_value(before, data, table)
        new = arrays_by_value(blank, today, table)
        counts = [0, 0]
        for value, row in arrays_by_value(begun, today, table).items():
            counts[value not in old] += 1
            np.testing.assert_array_equal(row, old.get(value, new[value]))
        assert min(counts) > 0
        assert old.keys() <= new.keys()
        assert (
            f"  table {table}: {counts[0]:,} rows come over, {counts[1]:,} are new"
            in said
        )
    chex.assert_trees_all_equal(begun.state.params, before.state.params)


@pytest.mark.slow
def test_new_optimizers_begin_anew(yesterday, tmp_path):
    data, run = yesterday
    overrides = "train.init_optimizer=new", "embedding.optimizer.kind=adagrad"
    begun, blank, _ = started(tmp_path, data, run, *overrides)
    before = loaded(run)[0]
    assert begun.step == 0
    np.testing.assert_array_equal(begun.table("user").rows, before.table("user").rows)
    for mine, theirs in zip(
        *(t.state.embedding_state.values() for t in (begun, blank)), strict=True
    ):
        for kind in theirs:
            np.testing.assert_array_equal(mine[kind], theirs[kind])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["embedding.dim=8", "model.bottom=[8,8]"],
            r"tables\.item\.dim is 4 in the run",
        ),
        (["model.top=[4,1]"], r"model\.top is .*must agree in model, features"),
        (["embedding.optimizer.kind=sgd"], r"adam in the run .*init_optimizer=new"),
        pytest.param(
            ["dense_optimizer.kind=adam"],
            r"dense_optimizer is adagrad in the run",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_does_not_fit_is_refused(yesterday, tmp_path, overrides, message):
    data, run = yesterday
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        started(tmp_path, data, run, *overrides)


@pytest.mark.slow
def test_rows_without_values_need_as_many(yesterday, tmp_path):
    _, run = yesterday
    hashed = prepare_day(tmp_path, 0, hash_columns={"user": 50})
    with pytest.raises(ConfigError, match=r"tables\.user\.kind is values .*, hashes"):
        started(tmp_path, hashed, run)
    first = trained(tmp_path, hashed)
    (tmp_path / "2").mkdir()
    other = prepare_day(tmp_path / "2", 0, hash_columns={"user": 51})
    message = "values of table 'user' have other rows(?s:.*)`embark data prepare --ext"
    with pytest.raises(ConfigError, match=message):
        started(tmp_path, other, first)


def test_columns_and_rows_of_another_meaning_are_refused(yesterday, tmp_path):
    _, run = yesterday
    anew = prepare_day(tmp_path, 1)  # with bounds and values of its own
    message = r"(?s)numbers\.price\.mean is .*`embark data prepare --extend`"
    with pytest.raises(ConfigError, match=message):
        started(tmp_path, anew, run)
    renamed = {("cost" if k == "price" else k): v for k, v in rows_of_day(0).items()}
    columns = Columns(dense={"cost": "log"})
    prepare_table(tmp_path, pa.table(renamed), tmp_path / "renamed", columns=columns)
    with pytest.raises(ConfigError, match=r"dense is \['price'\] in the run before"):
        started(tmp_path, tmp_path / "renamed", run)


@pytest.mark.slow
def test_the_command_starts_goes_on_and_resumes(yesterday, tmp_path):
    data, run = yesterday
    today = prepare_day(tmp_path, 1, data)
    path = config_of(tmp_path, today, f"train.init_from={run}", "train.eval_every=2")
    out = done("train", path, "--workdir", tmp_path / "whole").out
    assert "starts from" in out
    assert "table user: " in out
    record = json.loads((tmp_path / "whole" / "initial.json").read_text())
    assert record["first_step"] == 6
    assert record["kept_rows"]["user"] > 0
    steps = [r["step"] for r in runs.records(tmp_path / "whole")]
    assert max(steps) == 12
    checkpoints = (tmp_path / "whole" / "checkpoints").iterdir()
    assert sorted(int(p.name) for p in checkpoints if p.name.isdecimal()) == [9, 12]
    # In two halves; the run before may be gone by then.
    stopped = tmp_path / "stopped"
    done("train", path, "train.steps=3", "--workdir", stopped)
    done("train", path, "--workdir", stopped, "--resume")
    both = [runs.final(folder) for folder in (tmp_path / "whole", stopped)]
    assert both[0]["test_log_loss"] == both[1]["test_log_loss"]
    assert both[0]["step"] == both[1]["step"] == 12


@pytest.mark.slow
def test_rows_of_dynamic_tables_come_over_by_key(tmp_path):
    dynamic = (
        "embedding.tables={user: {slots: 20, max_slots: 40}, item: {}}",
        "embedding.dim=4",
    )
    keys = {"hash_columns": {"user": HASHED_KEYS}}
    data = prepare_day(tmp_path, 0, **keys)
    run = trained(tmp_path, data, *dynamic)
    (tmp_path / "1").mkdir()
    today = prepare_day(tmp_path / "1", 1, data, **keys)
    begun, _, said = started(tmp_path, today, run, *dynamic)
    before, setup = loaded(run)
    old, new = before.table("user"), begun.table("user")
    assert len(old.keys) > 20
    order = [np.argsort(table.keys) for table in (old, new)]
    np.testing.assert_array_equal(old.keys[order[0]], new.keys[order[1]])
    np.testing.assert_array_equal(old.rows[order[0]], new.rows[order[1]])
    assert "  table user: the rows of all keys come over" in said
    batches = [setup.dataset.train_batch(step, 32) for step in range(3)]
    both = [
        [result.loss for result in trainer.iterate_batches(batches)]
        for trainer in (before, begun)
    ]
    # The tables of items differ by rows that these batches do not read.
    assert both[0] == both[1]
    with pytest.raises(ConfigError, match="must be dynamic in both runs"):
        started(tmp_path, today, run, *dynamic, "train.init_optimizer=new")
