"""Two processes train on the same time windows, measure hit rates, and start from
another run, as one."""

from pathlib import Path

import pytest

from tests import runs
from tests.days import DAYS, config_of, prepare_days, prepare_table, table_of
from tests.processes import train_in_two
from tests.runs import done

MESH = "mesh={nodes: 2, gpus_per_node: 1}"
SPLIT = (
    "embedding.tables={user: {rows: 200, cluster: rb}, "
    "item: {max_slots: 99, slots: 99, evicted: discard}}"
)

TOWERS = "model={kind: two_tower, items: [item], tower: [8, 4]}"


def figures(run: Path) -> tuple[list, list]:
    windows = [
        r[f"validation_{metric}"]
        for r in runs.records(run)
        for metric in ("auc", "hr@10")
        if "window" in r
    ]
    return list(runs.losses(run).values()), windows


@pytest.mark.slow
def test_two_processes_train_on_windows_as_one(tmp_path):
    days = prepare_days(tmp_path)
    next_day = prepare_table(tmp_path / "raw", table_of(DAYS), tmp_path / "next", days)
    config = config_of(tmp_path, days, MESH, SPLIT, TOWERS, "train.retrieval={}")
    done("train", config, "--workdir", tmp_path / "one")
    train_in_two(config, "--workdir", tmp_path / "two")
    for one, two in zip(
        *map(figures, (tmp_path / "one", tmp_path / "two")), strict=True
    ):
        assert two == pytest.approx(one, rel=1e-4)
    more = [
        f"data={{kind: prepared, path: {next_day}}}",
        f"train.init_from={tmp_path / 'one'}",
        "train.steps=3",
    ]
    done("train", config, *more, "--workdir", tmp_path / "one more")
    said = train_in_two(config, *more, "--workdir", tmp_path / "two more")
    assert "steps go on at 12" in said[0]
    losses = [runs.losses(tmp_path / name) for name in ("one more", "two more")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
