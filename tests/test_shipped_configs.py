"""The configs that users start from: each says what it is, plans, and trains."""

import math
import re
import shlex
from pathlib import Path

import jax
import pytest

from embark_jax.config import ExperimentConfig
from embark_jax.config.reading import load
from embark_jax.config.table_lists import read_table_list
from embark_jax.run import experiment
from tests.config_files import CONFIGS, YAML
from tests.planner.published import GAPS
from tests.runs import done
from tests.thorough import thorough

ROOT = CONFIGS.parent
TABLE_LISTS = sorted((CONFIGS / "models").glob("*.yaml"))
GIN = [
    path
    for pattern in ("*.gin", "experiments/*/*.gin")
    for path in sorted(CONFIGS.glob(pattern))
]
QUICKSTART = CONFIGS / "quickstart.yaml"


def one_of_each_kind() -> list[Path]:
    """Those that train each model, each kind of data, and on a stand-in of each set."""
    trained, kinds = [], set()
    for path in sorted(YAML, key=lambda path: path != QUICKSTART):
        config = load(path)
        of_path = {config.model.kind, config.data.kind, path.parent.name}
        if new := of_path - kinds:
            kinds |= new
            trained.append(path)
    return trained


TRAINED = one_of_each_kind()
TRAINED_LISTS = [
    CONFIGS / "models" / f"{name}.yaml" for name in ("rmc1", "dlrm_dcnv2", "t7", "t180")
]
PLANNED_QUICKLY = {path for path in TRAINED if path.parent.name != "yambda"} | {
    CONFIGS / "experiments" / "movielens_100k" / "next_item.yaml"
}
PLANNED_QUICKLY -= {
    path for path in PLANNED_QUICKLY if path.stem.startswith(("dlrm_dcnv2", "hstu_"))
}
STEPS = 10
MOST_TABLES = 60
# Narrow layers, which compile and run fast; tables keep their dims.
NARROW = {
    "dlrm_dcnv2": ["model.bottom=[8]", "model.top=[1]", "model.cross_rank=2"],
    "dlrm": ["model.top=[1]"],
    "dcn": ["model.deep=[8]"],
    "wide_deep": ["model.deep=[8]"],
    "deepfm": ["model.deep=[8]"],
    "autoint": ["model.attention=[4]", "model.deep=[8]"],
    "finalmlp": ["model.stream1=[8]", "model.stream2=[4]"],
    "mmoe": ["model.expert=[8]", "model.tower=[4]"],
    "din": ["model.deep=[8]"],
    "two_tower": ["model.tower=[4]"],
    "hstu": ["model.width=8", "model.deep=[8]"],
    "dlrm_v4": ["model.hidden=8", "model.layers=1", "model.head_dim=4"],
    "next_item": ["model.layers=1"],
}


def name_of(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


def header(path: Path) -> dict[str, str]:
    """The comment that a file opens with, by the words before its colons."""
    lines = path.read_text().splitlines()
    found = {}
    for line in lines[: lines.index("")]:
        if label := re.match(r"# (\w+): +", line):
            key = label[1]
            found[key] = line[label.end() :]
        else:
            found[key] += f" {line.removeprefix('#').strip()}"
    return found


def command(path: Path) -> str:
    return f"embark train {path.relative_to(ROOT)}"


def stand_in(path: Path) -> list[str]:
    """The overrides with which its header says to try a config without its data."""
    tried = header(path).get("Try", command(path))
    assert tried.startswith(command(path))
    return tried.removeprefix(command(path)).split()


def train(config: ExperimentConfig) -> None:
    """Ten steps."""
    setup = experiment.build(config)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        results = setup.trainer().iterate(setup.dataset, STEPS)
        losses = [result.loss for result in results]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize("path", [*YAML, *GIN], ids=name_of)
def test_every_experiment_says_what_it_is_and_how_to_run_it(path):
    load(path)
    said = header(path)
    assert {"What", "Source", "Run", "Needs", "Expect", "Override"} <= said.keys()
    assert said["Run"] == command(path)


@pytest.mark.parametrize("path", GIN, ids=name_of)
def test_every_gin_config_equals_its_yaml_twin(path):
    assert load(path) == load(path.with_suffix(".yaml"))


@pytest.mark.parametrize("path", thorough(YAML, PLANNED_QUICKLY), ids=name_of)
def test_every_experiment_plans_for_its_fleet_without_its_data(
    path, tmp_path, monkeypatch
):
    monkeypatch.setenv("EMBARK_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load(path)
    planned = experiment.plan_model(config)
    assert planned.without_data == (config.data.kind != "synthetic")
    assert planned.plan.devices == config.mesh.devices
    assert {place.table.name for place in planned.plan.placements} >= set(
        config.embedding.tables
    )


def preparation(path: Path) -> list[str]:
    """The words after `embark data prepare` in the header of a config, but --out."""
    words = shlex.split(header(path)["Needs"].partition("embark data prepare ")[2])
    at = words.index("--out")
    return words[:at] + words[at + 2 :]


def test_the_data_do_not_change_the_plan(movielens, tmp_path):
    path = CONFIGS / "experiments" / "movielens_100k" / "din.yaml"
    plans = [
        experiment.plan_model(load(path, [f"data.path={folder}"]))
        for folder in (movielens(*preparation(path)), tmp_path / "absent")
    ]
    assert [planned.without_data for planned in plans] == [False, True]
    assert plans[0].plan == plans[1].plan
    assert plans[0].workload == plans[1].workload


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAINED, ids=name_of)
def test_an_experiment_trains(path, movielens):
    changes = stand_in(path)
    if load(path).data.kind == "synthetic":
        changes = ["scale=0.001"]
    elif "movielens" in str(path):
        changes = [f"data.path={movielens(*preparation(path))}"]
    config = load(path)
    gpus = min(2, config.mesh.gpus_per_node)  # more of them say no more here
    narrow = [*NARROW.get(config.model.kind, []), f"mesh.gpus_per_node={gpus}"]
    train(load(path, [*changes, *narrow]))


PLANNED = {name.lower().replace("-", "_") for name, _ in GAPS}
"""Lists that ``planner/test_search.py`` plans whole, for their fleet."""


@pytest.mark.parametrize(
    "path",
    thorough(
        [path for path in TABLE_LISTS if path.stem not in PLANNED],
        [CONFIGS / "models" / f"{name}.yaml" for name in ("rmc1", "synthetic_tiny")],
    ),
    ids=name_of,
)
def test_every_other_table_list_plans_for_its_fleet(path, tmp_path):
    (words,) = re.findall("embark (plan .*?)(?: embark train|$)", header(path)["Run"])
    few = str(without_most_equals(path, tmp_path))
    words = words.replace(path.stem, few)
    # Jumbo asks for 16 nodes; few tables fit on 4, which are planned in seconds.
    done(*words.replace("mesh.nodes=16", "mesh.nodes=4").split())


@pytest.mark.parametrize(
    "path", thorough(TRAINED_LISTS, TRAINED_LISTS[:1]), ids=name_of
)
def test_a_table_list_trains(path, tmp_path):
    few = without_most_equals(path, tmp_path)
    train(load(few, ["scale=0.0001", *NARROW.get(load(few).model.kind, [])]))


def without_most_equals(path: Path, folder: Path) -> Path:
    """A list of tables with at most two of those that are equal, if it is long.

    A table takes a sixth of a second to compile, and the hundredth shows no more than
    the second does: whole, the seven lists with more than MOST_TABLES take minutes.
    """
    listed = path.read_text()
    if len(read_table_list(listed).specs()[0]) <= MOST_TABLES:
        return path
    few = folder / path.name
    few.write_text(
        re.sub(r"\bcount: (\d+)", lambda n: f"count: {min(int(n[1]), 2)}", listed)
    )
    return few
