"""Many kinds of bad input: each is told of, and nothing is lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import runs
from tests.bad_input.case import Case, inside, make_world, message_of, read_cases

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "reference" / "bad_input.md"
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


@pytest.mark.slow
def test_the_page_shows_what_is_said():
    command = [sys.executable, "-m", "tests.bad_input"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == PAGE.read_text()
