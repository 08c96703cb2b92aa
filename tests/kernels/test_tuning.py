"""Winners are kept for each kind of device, and a damaged file costs nothing else."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from embark_kernels import (
    SHAPES,
    LookupConfig,
    UpdateConfig,
    lookup_key,
    tune,
    tuning,
    update_key,
)

from embark_jax.planner.request.table_list import read_table_list

GUESS = LookupConfig(3, 4)
BEST = LookupConfig(8, 16)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBARK_KERNELS_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache" / "tuned.json"


def keep(monkeypatch, key, winner, candidates):
    """Tunes on a clock of its own: the winner is fast."""
    monkeypatch.setattr(tuning, "_median_seconds", lambda call: call())
    seconds = dict.fromkeys(candidates, 2.0) | {winner: 1.0}
    return tune(key, candidates, lambda config: lambda: seconds[config])


def test_the_fastest_is_kept_beside_the_others(cache, monkeypatch):
    key = lookup_key(128, jnp.float32, 1000, 100)
    winner, seconds = keep(monkeypatch, key, BEST, [GUESS, BEST])
    assert (winner, seconds[GUESS]) == (BEST, 2.0)
    other = update_key(128, "bfloat16", {"accumulator": 1})
    keep(monkeypatch, other, UpdateConfig(1, 2), [UpdateConfig(1, 2)])
    assert tuning.tuned(key, GUESS) == BEST
    assert tuning.tuned(other, UpdateConfig(7, 7)) == UpdateConfig(1, 2)
    assert tuning.tuned("lookup float32 64 1", GUESS) == GUESS
    assert list(json.loads(cache.read_text())) == [jax.devices()[0].device_kind]
    assert list(cache.parent.iterdir()) == [cache], "a temporary file stayed"


def test_keys_tell_lengths_apart_to_a_power_of_two():
    of_10, of_16, of_17 = (lookup_key(8, "float32", n * 5, 5) for n in (10, 16, 17))
    assert of_10 == of_16 == "lookup float32 8 16"
    assert of_17 == "lookup float32 8 32"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{", "delete it"),
        ("[]", "not a JSON object of objects"),
        ('{"cpu": {"key": {"bags_per_block": 0, "rows_in_flight": 1}}}', "at least 1"),
        ('{"cpu": {"key": {"bags": 1}}}', "bags"),
        ('{"cpu": {"key": {"bags_per_block": "8", "rows_in_flight": 1}}}', "'8'"),
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(cache, text, warning):
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    with pytest.warns(UserWarning, match=warning):
        assert tuning.tuned("key", GUESS) == GUESS


def test_what_is_given_counts_and_not_the_file(cache, monkeypatch):
    key, other = "lookup float32 8 1", "lookup float32 8 2"
    keep(monkeypatch, key, BEST, [BEST])
    try:
        tuning.use({other: {"bags_per_block": 1, "rows_in_flight": 2}})
        assert tuning.tuned(key, GUESS) == GUESS
        assert tuning.tuned(other, GUESS) == LookupConfig(1, 2)
        tuning.use(tuning.winners())
        cache.unlink()
        assert tuning.tuned(key, GUESS) == BEST
    finally:
        tuning.use(None)
    assert tuning.tuned(key, GUESS) == GUESS


@pytest.mark.parametrize("name", ["dlrm_dcnv2", "t180", "t200", "t510", "t7"])
def test_shapes_are_those_of_the_models(name):
    path = Path(__file__).parents[2] / "configs" / "models" / f"{name}.yaml"
    specs, features = read_table_list(path.read_text()).specs()
    tables = {table.name: table for table in specs}
    widths = sorted({table.dim for table in tables.values()})
    of_model = [each for each in SHAPES if each.split()[0] == name]
    assert of_model == [f"{name} {width}" for width in widths]
    for width in widths:
        shape = SHAPES[f"{name} {width}"]
        mine = [f for f in features if tables[f.table].dim == width]
        assert shape.hotness == tuple(f.hotness for f in mine)
        assert shape.rows == sum(t.rows for t in tables.values() if t.dim == width)
        assert shape.width == width
