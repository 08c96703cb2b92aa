"""Plans, fleets and table lists that somebody made up: each ends in a clear error."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import embark_jax as ej
from embark_jax._base.config import ConfigError
from embark_jax.planner import plan_for
from embark_jax.report.plan_record import plan_record
from embark_jax.report.terminal import as_text
from tests.planner import published
from tests.thorough import thorough

MISSING = object()
VALUES = [
    MISSING,
    None,
    -1,
    0,
    10**18,
    10**400,
    float("nan"),
    -float("inf"),
    1e308,
    "9" * 5000,
    [],
    {},
    [[]] * 100,
    "\ud800",
]
QUICK = [MISSING, -1, 10**400, float("nan"), {}]
MOST_CHARACTERS = 20_000
"""Of an error: a person reads it."""


def paths(value: Any, before: tuple = ()) -> Iterator[tuple]:
    if before:
        yield before
    entries: Any = []
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value[:1])
    for key, entry in entries:
        yield from paths(entry, (*before, key))


def changed(value: Any, path: tuple, new: Any) -> Any:
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if new is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return value


@pytest.fixture(scope="module")
def written() -> dict:
    tables = [ej.TableSpec("a", 1000, 16), ej.TableSpec("b", 500, 16)]
    features = [ej.FeatureSpec("a"), ej.FeatureSpec("b")]
    return json.loads(ej.plan(tables, features, ej.fleets.dgx_h100(), 64).to_json())


@pytest.mark.parametrize("values", thorough([QUICK, VALUES], [QUICK]), ids=len)
def test_a_plan_is_refused_or_can_be_shown(written, values):
    refusals = []
    for path in paths(written):
        for value in values:
            text = json.dumps(changed(written, path, value))
            try:
                found = ej.Plan.from_json(text)
            except ValueError as error:
                refusals.append(str(error))
                continue
            if path[0] == "prediction" and value != 0:  # this is slow
                as_text(found)
            if found.prediction is not None:
                json.dumps(plan_record(found), allow_nan=False)
    assert max(map(len, refusals)) < MOST_CHARACTERS


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("prediction", "device_ms"), [1.0], "device_ms has 1 values, must have one"),
        (
            ("prediction", "step_ms"),
            float("nan"),
            r"prediction\.step_ms: nan given, must be",
        ),
        (("prediction", "breakdown", "table_ms"), {}, "table_ms must have a value for"),
        (("placements", 0, "table", "rows"), 10**18, "must be at most 4,398,046,511"),
    ],
)
def test_a_plan_is_refused_by_name(written, path, value, message):
    with pytest.raises(ValueError, match=message):
        ej.Plan.from_json(json.dumps(changed(written, path, value)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is nested too deeply"),
        ('{"version": 12, "features": ' + "[" * 100_000, "is nested too deeply"),
        (json.dumps({"version": 12, "placements": [1] * 100_001}), "100,001 entries"),
        (json.dumps({"version": 12, "placements": [1] * 1000}), "and 9.. more$"),
    ],
    ids=["deep", "deep inside", "long", "many problems"],
)
def test_a_plan_of_any_size_is_refused_in_a_few_words(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        ej.Plan.from_json(text)
    assert len(str(caught.value)) < MOST_CHARACTERS


@pytest.mark.parametrize(
    "values",
    thorough([[0, 1e300, {}], [None, -1, 1e-300, float("nan")]], [[0, 1e300, {}]]),
    ids=len,
)
def test_a_fleet_is_refused_or_planned_for(values, tmp_path):
    """No number overflows: warnings are errors in tests."""
    written = yaml.safe_load((ej.fleets.FILES / "dgx_h100.yaml").read_text())
    efficiency = ej.fleets.FILES / ej.fleets.GPU_EFFICIENCY
    written["efficiency"] = yaml.safe_load(efficiency.read_text())
    few = ej.read_table_list('[{"rows": 1000000, "dim": 64, "hotness": 3}]')
    path = tmp_path / "fleet.yaml"
    planned = 0
    for where in paths(written):
        for value in values:
            path.write_text(yaml.safe_dump(changed(written, where, value)))
            try:
                machines = ej.fleets.load(str(path))
            except ConfigError:
                continue
            json.dumps(
                plan_record(plan_for(published.workload(few, machines), *few.specs())),
                allow_nan=False,
            )
            planned += 1
    assert planned < 20  # names, what may be missing, and latencies of 0


@pytest.mark.parametrize(
    "text",
    [
        "device: !!python/object/apply:os.system ['true']",
        "device: " + "[" * 1200,
        "device: &x [*x]",
        "[1, 2]",
    ],
    ids=["a tag", "deep", "within itself", "no mapping"],
)
def test_a_fleet_that_is_no_fleet(text, tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="fleet"):
        ej.fleets.load(str(path))


LIST = {
    "batch": 64,
    "zipf_exponent": 1.05,
    "dense": {"features": 13, "bottom": [8], "top": [8, 1], "cross_layers": 1},
    "tables": [{"rows": 1000, "dim": 16, "hotness": [1, 2], "count": 2, "name": "a"}],
}


def test_a_list_is_refused_or_planned():
    refusals = []
    for path in paths(LIST):
        for value in (-1, 1.5, 2**63, 10**400, "x", [], {}, [10**9]):
            text = json.dumps(changed(LIST, path, value))
            try:
                found = ej.read_table_list(text)
                plan_for(
                    published.workload(found, ej.fleets.dgx_h100()), *found.specs()
                )
            except ValueError as error:
                refusals.append(str(error))
    assert max(map(len, refusals)) < MOST_CHARACTERS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 1200, "nested too deeply"),
        ("tables: " + "[" * 1200, "nested too deeply"),
        ('[{"rows": 10, "dim": 4, "count": 1000000000}]', "more than 100,000 tables"),
        ("tables: !!python/object/apply:os.system ['true']", "could not determine a"),
    ],
    ids=["deep", "deep in YAML", "a billion tables", "a tag"],
)
def test_a_list_that_is_no_list(text, message):
    with pytest.raises(ConfigError, match=message):
        ej.read_table_list(text)


def test_the_largest_table_is_short_of_memory():
    entry = {"rows": 2**42, "dim": 2**16, "count": 3}
    found = ej.read_table_list(json.dumps([entry]))
    with pytest.raises(ValueError, match="memory is short"):
        plan_for(published.workload(found, ej.fleets.dgx_h100(), 64), *found.specs())


def test_the_values_of_a_step_are_counted():
    found = ej.read_table_list('[{"rows": 10, "dim": 4, "hotness": 2147483647}]')
    workload = published.workload(found, ej.fleets.dgx_h100(), 2**44)
    with pytest.raises(ValueError, match=r"a step reads 151,115,7[0-9,]+ values"):
        plan_for(workload, *found.specs())
