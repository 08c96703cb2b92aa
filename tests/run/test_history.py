"""Which config trained which steps, and what may change when a run is resumed."""

from pathlib import Path

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig, reading
from embark_jax.run import history
from tests import runs


def config(folder: Path, *overrides: str) -> ExperimentConfig:
    return reading.load(runs.write_config(folder), overrides)


@pytest.fixture
def run(tmp_path) -> Path:
    """Workdir of a run that is at its beginning."""
    history.record(tmp_path, config(tmp_path), 0)
    return tmp_path


def recorded(workdir: Path) -> dict[int, float]:
    """The learning rate from each step on."""
    return {
        int(path.stem): reading.load(path).dense_optimizer.learning_rate
        for path in (workdir / "configs").iterdir()
    }


def rate(run: Path, value: float, *, at: int) -> None:
    changed = config(run, f"dense_optimizer.learning_rate={value}")
    history.record(run, changed, at)
    assert reading.load(run / "config.yaml") == changed


def test_the_config_of_each_step_is_known(run):
    assert recorded(run) == {0: 0.01}
    rate(run, 0.01, at=5)  # nothing is new
    assert recorded(run) == {0: 0.01}
    rate(run, 0.5, at=5)
    rate(run, 0.2, at=9)
    rate(run, 0.2, at=12)
    assert recorded(run) == {0: 0.01, 5: 0.5, 9: 0.2}


def test_a_run_without_its_config_is_not_resumed_with_another(run):
    (run / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"is missing.* the newest file of"):
        history.changes(run, config(run, "train.loss=my:loss"))


def test_steps_that_are_trained_again_are_those_of_the_new_config(run):
    rate(run, 0.5, at=5)
    rate(run, 0.2, at=9)
    rate(run, 0.5, at=7)  # the checkpoint at 9 is gone
    assert recorded(run) == {0: 0.01, 5: 0.5}
    rate(run, 0.3, at=5)
    assert recorded(run) == {0: 0.01, 5: 0.3}
    rate(run, 0.4, at=0)
    assert recorded(run) == {0: 0.4}


def test_a_run_without_a_record_gets_one(tmp_path):
    reading.save(config(tmp_path), tmp_path / "config.yaml")
    rate(tmp_path, 0.5, at=5)
    assert recorded(tmp_path) == {0: 0.01, 5: 0.5}


def test_what_changes_is_said(run):
    assert history.changes(run, config(run)) == []
    changed = config(run, "dense_optimizer.learning_rate=0.5", "train.eval_every=2")
    assert history.changes(run, changed) == [
        "dense_optimizer.learning_rate is 0.01 in the run so far, 0.5 here",
        "train.eval_every is not set in the run so far, 2 here",
    ]


@pytest.mark.parametrize(
    "override",
    [
        "mesh.nodes=1",
        "train.steps=9",
        "train.micro_batches=2",
        "data.path=x",
        "embedding.tables.user.cluster=dp",
        "embedding.tables.city.devices=[1]",
        "embedding.wire.rows=bfloat16",
        "embedding.optimizer.eps=0.5",
        "fleet=f",
        "name=other",
        "train.overlap=true",
        "train.dense_wire=bfloat16",
        "model.compute_dtype=bfloat16",
    ],
)
def test_what_may_change(tmp_path, override):
    data = "data={kind: prepared, path: here}"
    history.record(tmp_path, config(tmp_path, data), 0)
    if override.startswith("data"):
        assert history.changes(tmp_path, config(tmp_path, data, override))
    else:
        assert history.changes(tmp_path, config(tmp_path, override, data))


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "data.seed=1",
        "data.train_samples=2048",
        "data.zipf_exponent=1",
        "train.batch_size=32",
        "embedding.dim=8",
        "model.top=[4, 1]",
        "embedding.tables.user.rows=9",
        "embedding.tables.user.init_scale=0.1",
        "embedding.features.items.pooling=sum",
        "dense_optimizer.kind=sgd",
        "embedding.optimizer.initial_accumulator=0.1",
    ],
)
def test_what_must_not(run, override):
    before = runs.snapshot(run)
    with pytest.raises(ConfigError) as refused:
        history.changes(run, config(run, override, "train.steps=7"))
    first, second, *_, last = str(refused.value).splitlines()
    assert first == f"{run}: cannot be resumed with this config:"
    assert second.startswith(f"  {override.partition('=')[0]} is ")
    assert last.startswith("only these keys may change: name, fleet, mesh.*, ")
    assert "train.steps is" not in str(refused.value)
    assert runs.snapshot(run) == before


def test_every_key_that_may_change_is_one(run):
    leaves = set(history._leaves(config(run, "train.eval_every=1", "fleet=f")))
    leaves |= {"data.path", "embedding.tables.user.devices", "train.epochs"}
    leaves.add("train.overlap")
    leaves |= {"train.early_stopping.patience", "train.plateau.factor"}
    leaves |= {f"train.{key}_every" for key in ("checkpoint", "log")}
    for key in ("row_shards", "column_shards", "exchange", "hot_rows"):
        leaves.add(f"embedding.tables.user.{key}")
    leaves |= {f"embedding.tables.user.{key}" for key in ("tier", "slots", "evict")}
    leaves |= {"embedding.scratch", "train.trackers"}
    for key in ("learning_rate", "eps", "beta1", "weight_decay", "schedule.kind"):
        leaves.add(f"embedding.tables.user.optimizer.{key}")
        leaves.add(f"embedding.optimizer.{key}")
    for pattern in history.MAY_CHANGE:
        assert any(history.fnmatch.fnmatchcase(leaf, pattern) for leaf in leaves)


def test_a_damaged_config_of_before_is_kept_and_followed_by_a_whole_one(run):
    before = run / "configs" / "0.yaml"
    damaged = before.read_bytes().replace(b"tiny", b"t\xf7ny")
    before.write_bytes(damaged)
    history.record(run, config(run), 5)
    assert before.read_bytes() == damaged
    assert reading.load(run / "configs" / "5.yaml") == config(run)
