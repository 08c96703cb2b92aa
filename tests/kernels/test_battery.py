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
