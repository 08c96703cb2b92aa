"""embark bench step: what it reports; nothing here asserts a time."""

import json

import pytest

from tests import runs
from tests.runs import done


@pytest.mark.slow
def test_it_trains_and_reports(tmp_path):
    config = runs.write_config(tmp_path)
    outcome = done("bench", "step", config, "--rounds", "2", "--json")
    result = json.loads(outcome.out)
    assert result["devices"] == 8
    parts = ["route_ms", "lookup_ms", "lookup_and_update_ms", "step_ms"]
    assert min(result[name] for name in parts) > 0
    per_step = result["batch_size"] / result["samples_per_s"]
    assert abs(per_step - result["step_ms"] / 1e3) < 1e-9
    first, *_, last = result["loss"]
    assert last < first, "the batches it steps on in turn are not learnt"
