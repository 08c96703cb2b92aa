"""Many kinds of bad input: each is told of, and nothing is lost."""

import shutil
from pathlib import Path

import pytest

from tests import runs
from tests.bad_input.case import Case, inside, make_world, message_of, read_cases

CASES = [
    pytest.param(case, id=f"{entrance}: {case.given}")
    for entrance, cases in read_cases().items()
    for case in cases
]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: Case, world, tmp_path):
    folder = shutil.copytree(world, tmp_path / "world")
    with inside(folder):
        if case.damage is not None:
            case.damage()
        before = runs.snapshot(folder)
        with runs.compilations() as compiled:
            message = message_of(case)
        after = runs.snapshot(folder)
    for text in case.says:
        assert text in message
    # Nothing that would steer a terminal, and no page of it.
    assert all(each.isprintable() or each == "\n" for each in message)
    assert len(message) < 1500
    assert "jit(train_step)" not in compiled
    if case.leaves:
        new = folder / case.leaves
        after = {p: d for p, d in after.items() if not p.is_relative_to(new)}
    assert after == before
