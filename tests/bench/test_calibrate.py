"""Calibration: what it writes is a fleet that plans; nothing here asserts a time."""

import dataclasses

import pytest
import yaml

from embark_jax.bench.calibrate import Rates
from embark_jax.bench.fleet_yaml import fleet_yaml
from embark_jax.planner import plan
from embark_jax.planner.cost.rates import Rates as RatesOf
from embark_jax.plans import fleet
from embark_jax.plans.tables import FeatureSpec, TableSpec
from tests.runs import done

GIVEN = Rates(
    **{"copy_bytes_per_s": 4e9, "gather_bytes_per_s": 3e9, "scatter_bytes_per_s": 2e9},
    **{"matmul_flops_per_s": 8e9, "layer_flops_per_s": 6e9, "sort_keys_per_s": 1e6},
    **{"all_to_all_bytes_per_s": 1e9, "all_reduce_bytes_per_s": 2e9},
    **{"all_to_all_us": 12.0, "all_reduce_us": 38.0},
)


def written(tmp_path, rates):
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet_yaml(rates))
    return fleet.load(str(path))


def test_figures_by_hand(tmp_path):
    found = written(tmp_path, GIVEN)
    # Eight host devices; in the file are the totals, which they divide again.
    assert found.devices == 8
    assert "memory_bytes_per_s: 3.2e+10 # measured" in fleet_yaml(GIVEN)
    assert found.device.memory_bytes_per_s == pytest.approx(4e9)
    assert found.device.flops_per_s == pytest.approx(8e9)
    assert found.device.node_link_bytes_per_s == pytest.approx(1e9)
    assert found.efficiency.memory == pytest.approx(0.5)
    assert found.efficiency.flops == pytest.approx(0.75)
    # A launch and a hop take 12 µs, a launch and 14 hops 38: a hop takes 2.
    assert found.efficiency.node_hop_us == pytest.approx(2)
    assert found.efficiency.launch_us == pytest.approx(10)
    # A sum of 8 MB goes around twice at 2e9 bytes/s; 36 bytes move for a sorted key.
    sum_ms = RatesOf(found).all_reduce_ms(8e6)
    assert sum_ms == pytest.approx(38e-3 + 1e3 * 2 * 8e6 * 7 / 8 / 2e9)
    assert found.efficiency.ids == pytest.approx(36 * 1e6 / 4e9)
    assert fleet_yaml(GIVEN).count("# not measured") == 3


def test_a_device_alone_has_no_links(tmp_path):
    links = {f.name: None for f in dataclasses.fields(Rates) if f.name[:4] == "all_"}
    found = written(tmp_path, dataclasses.replace(GIVEN, **links))
    assert found.efficiency.launch_us == 0


def test_the_command_writes_a_fleet_that_plans(tmp_path):
    path = tmp_path / "fleet.yaml"
    outcome = done("bench", "calibrate", "--size", "0.0001", "--out", path)
    measured = yaml.safe_load(path.read_text())["measured"]
    assert measured.keys() == {field.name for field in dataclasses.fields(Rates)}
    assert all(float(value) > 0 for value in measured.values())
    assert "sort_keys_per_s" in outcome.out
    planned = plan(
        [TableSpec("a", 1000, 8)], [FeatureSpec("a")], fleet.load(str(path)), 64
    )
    assert planned.prediction.step_ms > 0
    config = tmp_path / "tables.yaml"
    config.write_text("[{rows: 1000, dim: 8}]")
    done("plan", config, f"fleet={path}")
