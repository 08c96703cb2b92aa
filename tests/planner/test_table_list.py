"""Table lists: what they say, and the published models against published totals."""

import json

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config.reading import load_table_list
from embark_jax.config.table_lists import read_table_list
from embark_jax.planner.request.workload import events_of_device
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.planner import published
from tests.runs import done

# Tables, parameters in 1e9, ids a sample and columns, totalled by hand from the
# released lists.
EMBARK = {
    "DLRM-DCNv2": (26, 26.1, 214, 3328),
    "T180": (177, 66.3, 14450, 19200),
    "T200": (200, 103.9, 4550, 24320),
    "T510": (510, 114.6, 2670, 65280),
    "T7": (7, 446, 163, 800),
}
# Tables and GiB, from the README of distributed-embeddings' synthetic models.
SYNTHETIC = {
    "tiny": (55, 4.2),
    "small": (107, 26.3),
    "medium": (311, 206.2),
    "large": (612, 773.8),
    "jumbo": (1022, 3109.5),
}
# Tables, rows in 1e6, dim and dense features, from FAE's table of workloads.
FAE = {
    "RMC1": (3, 5.1, 16, 1),
    "RMC2": (26, 33.8, 16, 13),
    "RMC3": (26, 266, 64, 13),
    "RMC4": (21, 9.3, 16, 1),
}


@pytest.mark.parametrize("name", EMBARK)
def test_embarks_models_have_the_published_totals(name):
    count, billions, ids, columns = EMBARK[name]
    listed = published.table_list(name)
    tables, features = listed.specs()
    assert listed.name == name
    assert len(tables) == count
    parameters = sum(table.rows * table.dim for table in tables)
    assert parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert sum(feature.hotness for feature in features) == ids
    assert sum(table.dim for table in tables) == columns


@pytest.mark.parametrize("size", SYNTHETIC)
def test_synthetic_models_have_the_published_totals(size):
    count, gib = SYNTHETIC[size]
    listed = published.table_list(f"synthetic-{size}")
    tables, features = listed.specs()
    assert len(tables) == count
    parameters_bytes = 4 * sum(table.rows * table.dim for table in tables)
    assert round(parameters_bytes / 2**30, 1) == gib
    assert (listed.optimizer, listed.zipf_exponent) == ("adagrad", 1.05)
    assert len(features) > len(tables)


@pytest.mark.parametrize("name", FAE)
def test_faes_workloads_have_the_published_totals(name):
    count, millions, dim, dense_features = FAE[name]
    listed = published.table_list(name)
    tables, _ = listed.specs()
    assert len(tables) == count
    # RMC1's and RMC4's rows are another project's, counted on the same data sets.
    assert sum(t.rows for t in tables) / 1e6 == pytest.approx(millions, rel=0.02)
    assert {table.dim for table in tables} == {dim}
    assert listed.dense.features == dense_features
    assert listed.dense.bottom[-1] == dim
    assert listed.dense.interaction == "dot"


def test_every_model_is_tested_and_says_how_to_plan_it():
    names = {f"synthetic_{size}" for size in SYNTHETIC}
    names |= {name.lower().replace("-", "_") for name in EMBARK | FAE}
    names |= {"dlrm_v4"}
    paths = sorted(published.FOLDER.iterdir())
    assert {path.stem for path in paths} == names
    for path in paths:
        assert f"embark plan {path.stem} fleet=" in path.read_text()


def test_the_tables_of_dlrm_v4():
    """600 GB (https://github.com/mlcommons/training, recommendation_v4)."""
    tables, features = published.model("DLRM_v4")
    assert sum(table.rows for table in tables) == 293_051_712
    assert {table.dim for table in tables} == {512}
    sequences = [f for f in features if f.hotness == 4086]
    assert [f.table for f in sequences] == ["item_id", "artist_id", "album_id"]
    assert {f.pooling for f in sequences} == {"none"}
    # Three histories, three candidates, and one id of each other table.
    assert sum(f.hotness for f in features) == 3 * 4086 + 3 + 8


def test_counts_names_and_shared_tables():
    tables, features = read_table_list(
        """
        - {count: 2, rows: 1_000, dim: 8, hotness: 3}
        - {rows: 20, dim: 4, hotness: [1, 10], name: genre}
        - {rows: 5, dim: 4, name: day0}
        - {rows: 5, dim: 4, name: day1, pooling: sum, tier: host}
        """
    ).specs()
    assert tables == [
        TableSpec("t0", 1000, 8),
        TableSpec("t1", 1000, 8),
        TableSpec("genre", 20, 4),
        TableSpec("day0", 5, 4),
        TableSpec("day1", 5, 4, tier="host"),
    ]
    assert features == [
        FeatureSpec("t0", hotness=3, pooling="mean"),
        FeatureSpec("t1", hotness=3, pooling="mean"),
        FeatureSpec("genre_0", "genre", pooling="mean"),
        FeatureSpec("genre_1", "genre", hotness=10, pooling="mean"),
        FeatureSpec("day0", pooling="mean"),
        FeatureSpec("day1", pooling="sum"),
    ]


def test_json_says_the_same_as_yaml():
    entries = [{"name": "a", "rows": 3, "dim": 4, "hotness": 2}]
    listed = read_table_list(json.dumps(entries, indent="\t"))
    assert listed == read_table_list("[{name: a, rows: 3, dim: 4, hotness: 2}]")
    assert listed == read_table_list(
        "tables:\n- {name: a, rows: 3, dim: 4, hotness: 2}"
    )


def test_all_that_is_wrong_is_said_once(tmp_path):
    text = """
    - {rows: 0, dim: 4}
    - {rows: 1, dim: x, hotness: [1, x]}
    """
    with pytest.raises(ValueError, match="table list") as error:
        read_table_list(text)
    assert str(error.value).splitlines() == [
        "table list: 4 problems",
        "  tables.0.rows: 0 given, must be greater than 0, or null",
        "  tables.1.dim: 'x' given, must be a valid integer, "
        "unable to parse string as an integer, or null",
        "  tables.1.hotness: [1, 'x'] given, must be a valid integer",
        "  tables.1.hotness.1: 'x' given, must be a valid integer",
    ]


def test_a_list_is_found_by_its_name_anywhere(tmp_path, monkeypatch):
    path = published.FOLDER / "t7.yaml"
    monkeypatch.chdir(tmp_path)
    assert load_table_list("t7") == load_table_list(path)
    (tmp_path / "t7").write_text("[{rows: 1, dim: 4}]")
    assert load_table_list("t7").specs() == (
        [TableSpec("t0", 1, 4)],
        [FeatureSpec("t0", pooling="mean")],
    )


def test_embark_plan_takes_what_the_list_says(tmp_path):
    def planned(*keys):
        return json.loads(done("plan", path, "fleet=dgx-h100", "--json", *keys).out)

    path = tmp_path / "model.yaml"
    path.write_text(
        "batch: 8192\nzipf_exponent: 1.1\noptimizer: sgd\n"
        "tables: [{count: 2, rows: 1_000_000, dim: 16, hotness: 10}]"
    )
    given = ("train.batch_size=8192", "data.zipf_exponent=1.1")
    given += ("embedding.optimizer.kind=sgd",)
    step_ms = planned()["step_ms"]
    assert planned(*given)["step_ms"] == step_ms
    assert planned("train.batch_size=16384")["step_ms"] != step_ms


def test_sequences_have_room_for_their_mean_length():
    """DLRMv4's histories: three standard deviations more than the mean, at most."""
    listed = load_table_list("dlrm_v4")
    _, features = listed.specs()
    workload = published.workload(listed, fleet.dgx_h100())
    histories = [f for f in features if f.hotness > 1]
    assert len(histories) == 3
    for feature in histories:
        assert workload.statistics.mean_hotness(feature) == 2663
        room = events_of_device(feature, workload)
        assert 1024 * 2663 < room < 1.07 * 1024 * 2663
    with pytest.raises(ConfigError, match="and none above it"):
        read_table_list("[{rows: 5, dim: 8, hotness: [4, 1], mean_hotness: [4, 2]}]")
