"""What is wrong with a config file is said, all at once."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from embark_jax.config_io import load
from tests.config_files import SYNTHETIC, error_of

# Mistakes in a file


def test_all_problems_of_a_file_are_reported_at_once(write):
    text = """
data: {kind: synthetic, zipf_exponnt: 1.1}
model: {kind: dlrm, cross_rank: 3, top: 4}
mesh:
embedding:
  tables: {user: {cluster: pb}, 7: {rows: 1}, no: 3}
  features: [genre]
trian: {steps: 3}
train: {steps: 2.5, batch_size: many}
"""
    assert error_of(write("a.yaml", text)).splitlines() == [
        "a.yaml: 11 problems",
        "  data.zipf_exponnt: unknown key; did you mean zipf_exponent?",
        "  model.top: 4 given, must be a list",
        "  model.cross_rank: unknown key; known: bottom, compute_dtype, kind, top",
        "  mesh: None given, must be a mapping",
        "  embedding.tables.user.cluster: 'pb' given, must be 'dp', 'rb' or 'ub'",
        "  embedding.tables.7: 7 given as a key, must be text: put it in quotes",
        "  embedding.tables.0: False given as a key, must be text: put it in quotes",
        "  embedding.features: ['genre'] given, must be a mapping",
        "  train.batch_size: 'many' given, must be a valid integer, unable to parse "
        "string as an integer",
        "  train.steps: 2.5 given, must be a valid integer, got a number with a "
        "fractional part",
        "  trian: unknown key; did you mean train?",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: {kind: dlrm}", "data.kind: missing, must be 'synthetic' or 'movie"),
        (
            SYNTHETIC + "model: {}",
            "model.kind: missing, must be 'dlrm_dcnv2' or 'dlrm'",
        ),
        (
            SYNTHETIC + "model: {kind: drlm}",
            "model.kind: 'drlm' given, must be 'dlrm_dcnv2' or 'dlrm'",
        ),
        (SYNTHETIC + "model: 3", "model: 3 given, must be a mapping"),
        (SYNTHETIC + "1: 2", "1: 1 given as a key, must be text"),
        (SYNTHETIC + f"seed: {'x' * 99}", f"seed: '{'x' * 76}... given"),
    ],
)
def test_problem(write, text, problem):
    message = error_of(write("a.yaml", text))
    assert message.startswith(f"a.yaml: 1 problem\n  {problem}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: is empty, must be a mapping"),
        ("# only a comment\n", "a.yaml: is empty, must be a mapping"),
        ("[1, 2]", "a.yaml: [1, 2] given, must be a mapping of sections"),
        ("a: 1\nb: [1\nc: 3", "a.yaml, line 3: YAML error: while parsing a flow seq"),
        ("a: 1\nb: {c: 1, c: 2}", "a.yaml, line 2: YAML error: key 'c' is there twice"),
        ("a: 1\na: 1", "a.yaml, line 2: YAML error: key 'a' is there twice"),
        ("a: 1\n---\nb: 1", "a.yaml, line 2: YAML error: expected a single document"),
        ("a: 2024-13-45", "a.yaml, YAML error: month must be in 1..12"),
        ("a: \x01", "a.yaml, YAML error: unacceptable character #x0001"),
        (
            "a: !!python/object/apply:os.system ['false']",
            "a.yaml, line 1: YAML error: could not determine a constructor",
        ),
    ],
)
def test_not_yaml(write, text, message):
    assert error_of(write("a.yaml", text)).startswith(message)


def test_unreadable_files(write):
    assert error_of("no.yaml") == "no.yaml: No such file or directory"
    assert error_of("no.gin") == "no.gin: No such file or directory"
    assert error_of("a.json") == "a.json: must end in .yaml, .yml, .gin"
    Path(write("a.yaml", "")).write_bytes(b"a: \xff")
    assert error_of("a.yaml").startswith("a.yaml: is not UTF-8 text")


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
    assert error_of(path).splitlines() == [
        "a.gin: 11 problems",
        "  TranConfig.steps: a.gin, line 6: unknown class TranConfig; did you mean "
        "TrainConfig?",
        "  data: @SynthticConfig() given, must be @SyntheticConfig() or "
        "@MovieLens100KConfig() or @PreparedConfig()",
        "  model: @DLRMConfig given, must be @DLRMDCNv2Config() or @DLRMConfig() or "
        "@DCNConfig() or @WideDeepConfig() or @DeepFMConfig() or @TBSMConfig()",
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.gin: is empty, must bind at least ExperimentConfig.data"),
        ("a.b = 1\nc.d", "a.gin, line 2: gin syntax error: Couldn't parse statement"),
        ("a.b = 1\nc.d = =", "a.gin, line 2: gin syntax error: Unable to parse value"),
        ("a.b = f(3)", "a.gin, line 1: gin syntax error: Failed to parse token 'f'"),
        ("include 'b.gin'", "b.gin: No such file or directory"),
        ("include 'a.gin'", "a.gin: an include, macro or reference leads back"),
        (
            "a = %b\nb = %a\nTrainConfig.steps = %a",
            "a.gin: an include, macro or reference leads back to itself",
        ),
    ],
)
def test_not_gin(write, text, message):
    assert error_of(write("a.gin", text)).startswith(message)


def test_a_gin_bracket_left_open(write):
    # The line differs between Python versions: where it opens, or the last one.
    message = error_of(write("a.gin", "a.b = (\n"))
    assert re.match(r"a.gin, line [12]: gin syntax error: .*EOF in multi-line", message)


def test_a_gin_include_is_found_from_the_file_it_is_in(write):
    write("parts/inner.gin", "ExperimentConfig.seed = 5")
    write("parts/outer.gin", "include 'inner.gin'")
    data = "ExperimentConfig.data = @SyntheticConfig()"
    assert load(write("a.gin", f"include 'parts/outer.gin'\n{data}")).seed == 5
