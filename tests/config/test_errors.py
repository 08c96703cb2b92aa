"""What is wrong with a config file is said, all at once."""

import sys

import pytest

from embark_jax.config.reading import load
from tests.config_files import error_of


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
    first, *problems = error_of(write("a.yaml", text)).splitlines()
    assert first == "a.yaml: 11 problems"
    keys = ("data.zipf_exponnt", "model.top", "model.cross_rank", "mesh")
    keys += ("embedding.tables.user.cluster", "embedding.tables.7")
    keys += ("embedding.tables.0", "embedding.features", "train.batch_size")
    keys += ("train.steps", "trian")
    assert [each.split(":")[0].strip() for each in problems] == [*keys]


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
