import json

from tests import runs
from tests.runs import done


def test_the_input_pipeline_alone(tmp_path):
    config = runs.write_config(tmp_path)
    options = ("--samples", "640", "--rounds", "2", "--json")
    outcome = done("bench", "input", config, *options)
    found = json.loads(outcome.out)
    assert (found["batch_size"], found["batches"], found["rounds"]) == (64, 10, 2)
    # Both say the same in two ways.
    assert abs(found["samples_per_s"] * found["batch_ms"] / 1e3 / 64 - 1) < 1e-9
