"""The battery of the GPU, as far as a CPU runs it: small cases in the interpreter."""

from pathlib import Path

import pytest
from embark_kernels import check
from embark_kernels._mosaic import interpreted

from experiments.gpu import check_cases

SMALL = {"HEADS": 1, "LENGTHS": (0, 70, 1), "ROOM": 100}


@pytest.fixture
def battery(monkeypatch):
    """The script, which imports its neighbours by their names alone."""
    monkeypatch.syspath_prepend(Path(check_cases.__file__).parent)
    import battery

    return battery


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_once")
def test_cases_of_attention_are_checked_and_timed(battery, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(check, name, value)
    few = {"ATTENTION": ("softmax",), "ATTENTION_DIMS": {"silu": 16}}
    for name, value in {**few, "LENGTHS": ((70,),)}.items():
        monkeypatch.setattr(battery.check_cases, name, value)
    monkeypatch.setattr(battery, "MOST_CALLS", 1)
    monkeypatch.setattr(battery, "ROUNDS", 1)

    def timed(implementation):
        sizes = {"heads": 1, "samples": 2, "longest": 90}
        case = battery.cases.attention(implementation, "softmax", 16, True, **sizes)
        return {"group": "attention", **case.fields, **battery.measure(case)}

    with interpreted():
        rows = [*battery.checks("check attention"), *map(timed, battery.BOTH)]
    assert len(rows) == 4 + 2
    assert not [row for row in rows if "error" in row]
    text = battery.summary(rows)
    assert text.count("ok ") == 4
    assert text.count("TFLOP/s") == 2


def test_both_workloads_of_the_step_have_the_batch_that_they_are_compared_at(battery):
    for workload, rule in (("benchmark", "adagrad"), ("zipf", "rowwise_adagrad")):
        config = battery.steps.read_config(workload, "xla")
        assert config.train.batch_size == 65_536
        assert config.embedding.optimizer.kind == rule


def test_time_of_a_profile_goes_to_kinds_of_kernels(battery):
    """Two kernels at once are busy once; between two there is nothing."""
    events = [
        ("nvjet_tst_128x128", 0, 10),
        ("loop_add_fusion", 20, 10),
        ("loop_concatenate_fusion", 25, 10),
    ]
    found = battery.steps.table_of_kinds(events, steps=2)
    expected = {"product": 5, "element-wise": 5, "concatenation": 5, "idle": 5}
    assert found == {kind: ns / 1e6 for kind, ns in sorted(expected.items())}
