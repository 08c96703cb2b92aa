"""YAML and gin to one config and back, and what each mistake is told."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embark_jax.config import (
    ROW_RULES,
    EmbeddingConfig,
    ExperimentConfig,
    FeatureConfig,
    PreparedConfig,
    SyntheticConfig,
    TableConfig,
    TrainConfig,
)
from embark_jax.config.models import section_of
from embark_jax.config.reading import load, save
from tests.config_files import SYNTHETIC, error_of

# Reading


def test_yaml_and_gin_are_one_schema(write):
    yaml = write(
        "a.yaml",
        """
name: twin
data: {kind: synthetic, train_samples: 1_000_000, zipf_exponent: 12e-1}
model: {kind: dlrm, bottom: [64, 16], top: [8, 1]}
mesh: {nodes: 2, gpus_per_node: 4}
embedding:
  dim: 16
  tables:
    user: {rows: 40_000_000, cluster: ub, init_scale: 1e-2}
    genre: {rows: 20, cluster: dp, init_scale: 1e-2}
  features:
    genres: {table: genre, hotness: 10, pooling: mean}
  optimizer: {kind: adam, learning_rate: 1e-3}
dense_optimizer: {learning_rate: 1e-3}
train: {batch_size: 4096, steps: 2e3}
""",
    )
    write("parts/base.gin", "lr = 1.0\nscale = 1e-2\ntrain.steps = 5\nbatch = 4096\n")
    gin_file = write(
        "a.gin",
        """
include 'parts/base.gin'

lr = 1e-3  # replaces the included one
name = 'twin'
data:
  kind = 'synthetic'
  train_samples = 1_000_000
  zipf_exponent = 1.2
model:
  kind = 'dlrm'
  bottom = [64, 16]
  top = (8, 1)
mesh.nodes = 2
mesh.gpus_per_node = 4
embedding.dim = 16
embedding.tables.user = {'rows': 40_000_000, 'cluster': 'ub', 'init_scale': %scale}
embedding.tables.genre = {'rows': 20, 'cluster': 'dp', 'init_scale': %scale}
embedding.features.genres:
  table = 'genre'
  hotness = 10
  pooling = 'mean'
embedding.optimizer.kind = 'adam'
embedding.optimizer.learning_rate = %lr
dense_optimizer.learning_rate = %lr
train.batch_size = %batch
train.steps = 2000
""",
    )
    config = load(yaml)
    assert config == load(gin_file)
    assert config.embedding.tables["user"].rows == 40_000_000
    assert config.dense_optimizer.learning_rate == 1e-3
    assert config.train.steps == 2000


def test_a_gin_file_may_choose_another_model_than_the_one_it_includes(write):
    write(
        "base.gin",
        "data.kind = 'synthetic'\nmodel.kind = 'dlrm_dcnv2'\nmodel.cross_rank = 8\n",
    )
    path = write("a.gin", "include 'base.gin'\nmodel.kind = 'dlrm'")
    assert load(path).model == section_of("dlrm")()


# Writing

tricky_names = st.sampled_from(
    ["1e3", "yes", "null", "~", "0x1", "=", "<<", "a: b", "\x85", ""]
)
names = st.text(max_size=8) | tricky_names
counts = st.integers(1, 2**60)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
widths = st.lists(counts, max_size=3)


def maybe(strategy):
    return st.none() | strategy


tables = st.builds(
    TableConfig,
    rows=maybe(counts),
    init_scale=maybe(positive),
    cluster=maybe(st.sampled_from(["dp", "rb", "ub"])),
    devices=maybe(st.lists(st.integers(0, 7), max_size=3)),
)
features = st.builds(FeatureConfig, table=maybe(names), hotness=maybe(counts))
configs = st.builds(
    ExperimentConfig,
    name=names,
    seed=st.integers(0, 2**32 - 1),
    data=st.builds(SyntheticConfig, zipf_exponent=positive)
    | st.builds(PreparedConfig, path=st.just(Path("~/ml: 100k"))),
    model=st.builds(section_of("dlrm_dcnv2"), bottom=widths, cross_rank=counts)
    | st.builds(section_of("dlrm"), top=widths),
    embedding=st.builds(
        EmbeddingConfig,
        tables=st.dictionaries(names, tables, max_size=3),
        features=st.dictionaries(names, features, max_size=3),
        optimizer=st.builds(ROW_RULES["adagrad"], eps=positive),
    ),
    train=st.builds(TrainConfig, batch_size=counts, eval_every=maybe(counts)),
)


@settings(max_examples=20)
@given(configs)
def test_what_is_saved_loads_back_equal(config):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        save(config, path)
        assert load(path) == config


def test_what_is_saved_holds_defaults_but_not_what_is_unset(tmp_path):
    save(ExperimentConfig(data=SyntheticConfig()), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith("name: experiment\nseed: 0\ndata:\n  kind: synthetic\n")
    assert "  bottom: [512, 256, 128]\n" in text
    assert "eval_every" not in text


# Overrides


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", SYNTHETIC + "train: {steps: 3}\nmesh:\n"),
        (
            "a.gin",
            "data.kind = 'synthetic'\ntrain.steps = 3",
        ),
    ],
)
def test_overrides_change_either_syntax(write, name, text):
    config = load(
        write(name, text),
        [
            "train.batch_size=4096",
            "train.steps=1_000",
            "train.steps=2000",
            "mesh.nodes=2",
            "embedding.tables.user.cluster=ub",
            "model={kind: dlrm, bottom: [4]}",
            "dense_optimizer.learning_rate=1e-3",
            "embedding.optimizer.kind=adam",
            "name=a=b",
            "train.eval_every=",
        ],
    )
    assert (config.train.batch_size, config.train.steps) == (4096, 2000)
    assert config.mesh.nodes == 2
    assert config.embedding.tables == {"user": TableConfig(cluster="ub")}
    assert config.model == section_of("dlrm")(bottom=[4])
    assert config.dense_optimizer.learning_rate == 1e-3
    assert config.embedding.optimizer == ROW_RULES["adam"]()
    assert config.name == "a=b"
    assert config.train.eval_every is None


def test_a_changed_kind_drops_the_keys_that_only_the_old_kind_has(write):
    text = SYNTHETIC + "model: {kind: dlrm_dcnv2, bottom: [8], cross_rank: 4}"
    path = write("a.yaml", text)
    data = ["data.kind=prepared", "data.path=a"]
    config = load(path, ["model.kind=dlrm", *data])
    assert config.model == section_of("dlrm")(bottom=[8])
    assert config.data == PreparedConfig(path=Path("a"))
    adam = "embedding: {optimizer: {kind: adam, beta1: 0.5, eps: 0.1, weight_decay: 1}}"
    path = write("b.yaml", SYNTHETIC + adam)
    optimizer = load(path, ["embedding.optimizer.kind=adagrad"]).embedding.optimizer
    expected = ROW_RULES["adagrad"](eps=0.1, weight_decay=1)
    assert optimizer == expected
    # But neither typos nor other overrides.
    path = write("c.yaml", SYNTHETIC + "model: {kind: dlrm_dcnv2, botom: [8]}")
    message = error_of(path, ["model.cross_rank=8", "model.kind=dlrm"])
    assert "model.botom: unknown key; did you mean bottom?\n" in message
    assert "model.cross_rank: unknown key; known: " in message


def test_an_override_leaves_the_other_uses_of_a_yaml_anchor(write):
    text = SYNTHETIC + "embedding: {tables: {a: &small {rows: 3}, b: *small}}"
    config = load(write("a.yaml", text), ["embedding.tables.a.rows=5"])
    assert config.embedding.tables == {
        "a": TableConfig(rows=5),
        "b": TableConfig(rows=3),
    }


# Table lists, and smaller copies


def test_a_table_list_is_an_experiment_on_synthetic_data(write):
    path = write(
        "listed.yaml",
        """
        batch: 64
        zipf_exponent: 1.1
        optimizer: adagrad
        dense: {features: 4, bottom: [8], top: [16, 1], interaction: dot}
        tables:
          - {count: 2, rows: 1_000, dim: 8, hotness: 3}
          - {name: genre, rows: 20, dim: 8, hotness: [1, 10]}
        """,
    )
    embedding = {
        "tables": {
            "t0": {"rows": 1000, "dim": 8},
            "t1": {"rows": 1000, "dim": 8},
            "genre": {"rows": 20, "dim": 8},
        },
        "features": {
            "t0": {"table": "t0", "hotness": 3, "pooling": "mean"},
            "t1": {"table": "t1", "hotness": 3, "pooling": "mean"},
            "genre_0": {"table": "genre", "hotness": 1, "pooling": "mean"},
            "genre_1": {"table": "genre", "hotness": 10, "pooling": "mean"},
        },
        "optimizer": {"kind": "adagrad"},
    }
    expected = {
        "name": "listed",
        "data": {"kind": "synthetic", "dense_features": 4, "zipf_exponent": 1.1},
        "model": {
            "compute_dtype": "bfloat16",
            "kind": "dlrm",
            "bottom": [8],
            "top": [16, 1],
        },
        "embedding": embedding,
        "dense_optimizer": {"kind": "adagrad"},
        "train": {"batch_size": 64, "steps": 3},
    }
    config = load(path, ["train.steps=3"])
    assert config == ExperimentConfig.model_validate(expected)


def test_scale_shrinks_rows_batch_and_samples_and_nothing_else(write):
    text = """
    data: {kind: synthetic, train_samples: 50_000, test_samples: 30}
    mesh: {nodes: 2, gpus_per_node: 4}
    embedding: {tables: {a: {rows: 123_456}, b: {rows: 5_000}, c: {rows: 7}}}
    train: {batch_size: 65_536}
    """
    path = write("a.yaml", text)
    small = load(path, ["scale=0.001", "train.steps=5"])
    changed = [
        "embedding.tables.a.rows=124",
        "embedding.tables.b.rows=10",
        "data.train_samples=50",
        "data.test_samples=1",
        "train.batch_size=72",
        "train.steps=5",  # 8.192 a device
    ]
    assert small == load(path, changed)
    assert load(path, ["scale=1"]) == load(path)
    cut = load(path, ["scale=0.0001", "train.micro_batches=4"])
    assert cut.train.batch_size == 4 * cut.mesh.devices
