"""The check of the kernels: it passes right ones and finds wrong, hanging and dying
ones; its verdict is kept, and decides what None takes."""

import inspect
import json
import sys

import jax
import numpy as np
import pytest
from embark_kernels import (
    _implementation,
    _update_kernel,
    check_cases,
    choose,
    verdict,
    why_plain_xla,
)
from embark_kernels._mosaic import interpreted
from embark_kernels.check import (
    GROUPS,
    check_kernels,
    largest_error,
    run_case,
    run_group,
)
from embark_kernels.check_cases import cases

from embark_jax.cli import bench

ROWS = 97


@pytest.fixture(autouse=True)
def verdicts(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBARK_KERNELS_CACHE", str(tmp_path))
    return tmp_path / "verdicts.json"


@pytest.fixture
def small(monkeypatch):
    """Cases that the interpreter is done with soon."""
    for name, value in {"ROWS": ROWS, "IDS": 300, "LONG_BAG": 20}.items():
        monkeypatch.setattr(check_cases, name, value)
    monkeypatch.setattr(check_cases, "OUT_OF_RANGE", (-1, -(2**31), ROWS, 2**31 - 1))


@pytest.fixture
def hopper(monkeypatch):
    """The kernels can run here."""
    monkeypatch.setattr(_implementation, "_why_not_mosaic_gpu", lambda: "")


def run(op, about=""):
    """The row of the first such case, in the interpreter."""
    found = (c for c in cases(128) if (c.op, c.about) == (op, about))
    with interpreted():
        return run_case(next(found))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("op", "about"), [("sum_bags", "weighted"), ("update_rows", "SGD")]
)
def test_kernels_pass(op, about):
    row = run(op, about)
    assert row["problem"] == ""
    assert 0 < row["error"] <= row["limit"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 16])
def test_plain_xla_passes(width, monkeypatch):
    monkeypatch.setitem(check_cases.KERNELS, "implementation", "xla")
    rows = [run_case(case) for case in cases(width)]
    assert len({row["op"] for row in rows}) == (2 if width is None else 5)
    assert [row for row in rows if row["problem"]] == []


def test_the_help_counts_the_programs():
    count = sum(len(list(cases(width))) for width in GROUPS.values())
    assert f"Compiles {count} programs" in inspect.getsource(bench)


@pytest.mark.usefixtures("small")
def test_a_kernel_that_forgets_rows_is_found(monkeypatch):
    right = check_cases.update_rows

    def forgets(table, states, rows, *args, **options):
        return right(table, states, rows.at[:9].set(-1), *args, **options)

    monkeypatch.setattr(check_cases, "update_rows", forgets)
    assert run("update_rows", "SGD")["problem"] == "differs from the textbook"


@pytest.mark.usefixtures("small")
def test_a_kernel_of_little_precision_is_found(monkeypatch):
    right = _update_kernel.sqrt
    monkeypatch.setattr(_update_kernel, "sqrt", lambda x: right(x) * (1 + 1e-5))
    assert run("update_rows", "Adagrad")["problem"] == "differs from the textbook"


@pytest.mark.usefixtures("small")
def test_a_kernel_that_adds_in_another_order_each_time_is_found(monkeypatch):
    calls, compiled = [], check_cases.Case.__dict__["program"].__get__

    def jitters(case):
        calls.append(case)
        factor = 1 + len(calls) * 2e-7

        def call(table, states, rows, gradients, noise):
            return compiled(case)(table, states, rows, gradients * factor, noise)

        return call

    monkeypatch.setattr(check_cases.Case, "program", property(jitters))
    assert run("update_rows", "SGD")["problem"] == "differs from one call to the next"


def test_errors_are_relative_to_magnitudes():
    zero, one = np.zeros(2), np.ones(2)
    assert largest_error(np.array([0.0, 1.5]), one, np.array([2.0, 1.0])) == 0.5
    assert largest_error(zero, zero, zero) == 0
    assert largest_error(np.array([0, 1e-30]), zero, zero) == np.inf
    assert largest_error(np.array([0, np.nan]), zero, one) == np.inf
    assert largest_error(np.zeros(3), zero, one) == np.inf


BEGUN = json.dumps({"op": "sum_bags", "width": 16})
DONE = json.dumps({"op": "update_rows", "error": 0.0, "limit": 0.0, "problem": ""})


@pytest.mark.parametrize(
    ("does", "op", "problem"),
    [
        ("import time; time.sleep(60)", "sum_bags", "stopped after 1 s"),
        ("import os; os._exit(7)", "sum_bags", "ended with exit code 7: "),
        ("raise OSError('lost')", "sum_bags", "ended with exit code 1: OSError: lost"),
    ],
    ids=["hangs", "dies", "raises"],
)
def test_a_case_that_ends_its_process_is_a_row(does, op, problem):
    said = "\n".join([BEGUN, DONE, BEGUN])
    code = f"print({said!r}, flush=True); print('{{', end='', flush=True); {does}"
    rows = run_group("width16", [sys.executable, "-c", code], 1)
    assert [row["problem"] for row in rows] == ["", problem]
    assert rows[1]["op"] == op


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("import sys; sys.exit('no GPU')", "ended with exit code 1: no GPU"),
        ("", "ran no case"),
    ],
)
def test_a_group_that_never_begins_is_a_row(does, problem):
    (row,) = run_group("width16", [sys.executable, "-c", does], 60)
    assert row["op"] == "width16"
    assert row["problem"] == problem


def test_without_a_gpu_there_is_nothing_to_check():
    with pytest.raises(
        ValueError, match=r"mosaic_gpu needs a GPU; .* nothing to check"
    ):
        check_kernels()


@pytest.mark.usefixtures("hopper")
def test_a_passed_check_decides_what_none_takes(verdicts):
    assert choose(None) == "xla"
    assert why_plain_xla() == (
        "the GPU kernels have not been checked on this kind of GPU; "
        "`embark bench kernels --check` does that, in about 3 minutes"
    )
    assert choose("mosaic_gpu") == "mosaic_gpu"
    verdict.keep_verdict([])
    assert why_plain_xla() == ""
    assert choose(None) == "mosaic_gpu"
    assert choose(None, width=7) == "xla"
    assert list(json.loads(verdicts.read_text())) == [jax.devices()[0].device_kind]
    verdict.keep_verdict(["update_rows", "sum_bags", "sum_bags"])
    assert choose(None) == "xla"
    assert why_plain_xla().endswith("on this kind of GPU: sum_bags, update_rows")


def test_a_verdict_is_not_enough():
    verdict.keep_verdict([])
    assert choose(None) == "xla"
    assert why_plain_xla() == "mosaic_gpu needs a GPU; JAX runs on cpu here"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", ["jax", "jaxlib", "embark_kernels"])
def test_other_versions_are_unchecked(name, monkeypatch):
    verdict.keep_verdict([])
    other = {**verdict.versions(), name: "9.9"}
    monkeypatch.setattr(verdict, "versions", lambda: other)
    assert choose(None) == "xla"
    assert f"were checked with {name} " in why_plain_xla()
    assert ", not with 9.9; `embark bench" in why_plain_xla()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({"cpu": {**verdict.versions(), "failed": 0}})]
)
def test_a_damaged_file_is_no_verdict(verdicts, text):
    verdicts.write_text(text)
    with pytest.warns(UserWarning, match="delete it"):
        assert choose(None) == "xla"


@pytest.mark.usefixtures("hopper")
def test_the_verdict_of_process_0_counts():
    try:
        verdict.use("")
        assert choose(None) == "mosaic_gpu"
        verdict.use("not there")
        verdict.keep_verdict([])
        assert why_plain_xla() == "not there"
    finally:
        verdict.use(None)
    assert choose(None) == "mosaic_gpu"
