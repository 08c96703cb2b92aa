"""What is wrong with a config file is said, all at once."""

import sys

import pytest

from embark_jax.config import SOURCES, OwnModelConfig
from embark_jax.config.models import MODELS
from embark_jax.config.reading import load
from tests.config_files import error_of

# Mistakes in a file


def test_all_problems_of_a_file_are_reported_at_once(write):
    text = """
data: {kind: synthetic, zipf_exponnt: 1.1}
model: {kind: dlrm, cross_rank: 3, top: 4}
mesh:
embedding:
  tables: {user: {cluster: pb}, 7: {rows: 1}, false: 3}
  features: [genre]
trian: {steps: 3}
train: {steps: 2.5, batch_size: many}
"""
    assert error_of(write("a.yaml", text)).splitlines() == [
        "a.yaml: 11 problems",
        "  data.zipf_exponnt: unknown key; did you mean zipf_exponent?",
        "  model.top: 4 given, must be a list, such as [4]",
        "  model.cross_rank: unknown key; known: batch_norm, bottom, compute_dtype, "
        "dropout, kind, top",
        "  mesh: None given, must be a mapping with nodes, gpus_per_node",
        "  embedding.tables.user.cluster: 'pb' given, must be 'dp', 'rb' or 'ub'",
        "  embedding.tables.7: 7 given as a key, must be text: put it in quotes",
        "  embedding.tables.0: False given as a key, must be text: put it in quotes",
        "  embedding.features: ['genre'] given, must be a mapping by name, each with "
        "table, hotness, pooling, weighted",
        "  train.batch_size: 'many' given, must be a valid integer, unable to parse "
        "string as an integer",
        "  train.steps: 2.5 given, must be a valid integer, got a number with a "
        "fractional part",
        "  trian: unknown key; did you mean train?",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.early_stopping=2",
            "train.early_stopping: 2 given, must be a mapping with metric, "
            "min_change, patience",
        ),
        ("model.top=3", "model.top: 3 given, must be a list, such as [3]"),
        (
            "train.trackers=x",
            "train.trackers: 'x' given, must be a list, such as ['x']",
        ),
        (
            "embedding.optimizer.schedule=2",
            "embedding.optimizer.schedule: 2 given, must be a mapping with kind: "
            "'constant' or 'cosine'",
        ),
        (
            "embedding.tables={user: 3}",
            "embedding.tables.user: 3 given, must be a mapping with rows, dim",
        ),
        (
            "train.task_weights=2",
            "train.task_weights: 2 given, must be a mapping by name",
        ),
    ],
)
def test_one_value_where_a_section_or_list_belongs(write, override, message):
    path = write("a.yaml", "data: {kind: synthetic}\nmodel: {kind: dlrm}\n")
    assert message in error_of(path, [override])


# Mistakes in gin


def test_all_problems_of_a_gin_file_are_reported_at_once(write):
    path = write(
        "a.gin",
        """
ExperimentConfig.data = @SynthticConfig()
ExperimentConfig.model = @DLRMConfig
ExperimentConfig.mesh = @TrainConfig()
ExperimentConfig.seed = @TrainConfig()
TranConfig.steps = 3
usr/TableConfig.rows = 3
TrainConfig.bach_size = 3
TrainConfig.steps = %stps
steps = 3
TrainConfig.log_every = 0
EmbeddingConfig.tables = {'user': @user/TableConfig()}
user/TableConfig.cluster = 'pb'
DLRMDCNv2Config.cross_rank = 3
""",
    )
    models, sources = (
        " or ".join(f"@{section.__name__}()" for section in sections)
        for sections in ((*MODELS, OwnModelConfig), SOURCES)
    )
    assert error_of(path).splitlines() == [
        "a.gin: 11 problems",
        "  TranConfig.steps: a.gin, line 6: unknown class TranConfig; did you mean "
        "TrainConfig?",
        f"  data: @SynthticConfig() given, must be {sources}",
        f"  model: @DLRMConfig given, must be {models}",
        "  mesh: @TrainConfig() given, must be @MeshConfig()",
        "  seed: @TrainConfig() given, must be a value, not a reference",
        "  train.steps: %stps given, but no such macro; did you mean steps?",
        "  usr/TableConfig: is bound, but nothing refers to @usr/TableConfig(); did "
        "you mean user/TableConfig?",
        "  DLRMDCNv2Config: is bound, but nothing refers to @DLRMDCNv2Config(); did "
        "you mean DLRMConfig?",
        "  embedding.tables.user.cluster: 'pb' given, must be 'dp', 'rb' or 'ub'",
        "  train.log_every: 0 given, must be greater than 0",
        "  train.bach_size: unknown key; did you mean batch_size?",
    ]


@pytest.mark.parametrize("statement", ["import spy", "from spy import x", "import a.b"])
def test_gin_imports_are_refused_and_not_run(write, monkeypatch, statement):
    monkeypatch.syspath_prepend(".")
    write("spy.py", "x = 1")
    path = write("a.gin", f"{statement}\nExperimentConfig.data = @SyntheticConfig()")
    message = f"  {statement}: a.gin, line 1: an import would run code, which a config"
    assert message in error_of(path)
    assert "spy" not in sys.modules


def test_macros_that_lead_back_to_each_other(write):
    text = "a = %b\nb = %a\nTrainConfig.steps = %a"
    message = "a.gin: an include, macro or reference leads back to itself"
    assert error_of(write("a.gin", text)) == message


def test_a_gin_include_is_found_from_the_file_it_is_in(write):
    write("parts/inner.gin", "ExperimentConfig.seed = 5")
    write("parts/outer.gin", "include 'inner.gin'")
    data = "ExperimentConfig.data = @SyntheticConfig()"
    assert load(write("a.gin", f"include 'parts/outer.gin'\n{data}")).seed == 5


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("{kind: dlrm_dcnv2, cross_layers: 1000000000000}", "cross_layers"),
        ("{kind: dcn, cross_layers: 1000000000000}", "cross_layers"),
        ("{kind: mmoe, tasks: [a, b], experts: 1000000000000}", "experts"),
    ],
)
def test_layers_without_end_are_refused(write, model, key):
    """Each is made to count it, which would not end."""
    message = error_of(write("a.yaml", f"data: {{kind: synthetic}}\nmodel: {model}\n"))
    assert f"model.{key}: 1000000000000 given, must be less than or equal" in message
