"""What is wrong with a config file is said, all at once."""

import sys

import pytest

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
        "  model.top: 4 given, must be a valid tuple",
        "  model.cross_rank: unknown key; known: batch_norm, bottom, compute_dtype, "
        "dropout, kind, top",
        "  mesh: None given, must be a valid dictionary or instance of MeshConfig",
        "  embedding.tables.user.cluster: 'pb' given, must be 'dp', 'rb' or 'ub'",
        "  embedding.tables.7: 7 given, must be a valid string",
        "  embedding.tables.0: False given, must be a valid string; or 3 given, must "
        "be a valid dictionary or instance of TableConfig",
        "  embedding.features: ['genre'] given, must be a valid dictionary",
        "  train.batch_size: 'many' given, must be a valid integer, unable to parse "
        "string as an integer",
        "  train.steps: 2.5 given, must be a valid integer, got a number with a "
        "fractional part",
        "  trian: unknown key; did you mean train?",
    ]


# Mistakes in gin


@pytest.mark.parametrize("statement", ["import spy", "from spy import x", "import a.b"])
def test_gin_imports_are_refused_and_not_run(write, monkeypatch, statement):
    monkeypatch.syspath_prepend(".")
    write("spy.py", "x = 1")
    path = write("a.gin", f"{statement}\ndata.kind = 'synthetic'")
    assert "a.gin, line 1: an import would run code, which a config" in error_of(path)
    assert "spy" not in sys.modules


def test_a_gin_include_is_found_from_the_file_it_is_in(write):
    write("parts/inner.gin", "seed = 5")
    write("parts/outer.gin", "include 'inner.gin'")
    data = "data.kind = 'synthetic'"
    assert load(write("a.gin", f"include 'parts/outer.gin'\n{data}")).seed == 5
