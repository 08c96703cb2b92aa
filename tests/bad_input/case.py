"""A kind of bad input, and what comes of it."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests import runs


class Case(NamedTuple):
    """One row of the table.

    Attributes:
      given: what is wrong, in words.
      call: what a user does: a command line, or a function that is called.
      says: words that the message must have.
      damage: makes the input bad, in the working directory; None if the call does.
      leaves: a folder that the call may begin.
    """

    given: str
    call: str | Callable[[], Any]
    says: tuple[str, ...]
    damage: Callable[[], Any] | None = None
    leaves: str = ""


class AcceptedError(AssertionError):
    """Bad input went through."""


def message_of(case: Case) -> str:
    """What is said to whoever makes this mistake in the working directory.

    An error that is not about input, such as a ``TypeError`` of ours, is not caught.

    Raises:
      AcceptedError: if nothing is said.
    """
    if not isinstance(case.call, str):
        try:
            found = case.call()
        except (ValueError, OSError) as error:
            return str(error)
        raise AcceptedError(f"gave {found!r:.200}")
    _, *words = shlex.split(case.call)
    outcome = runs.embark(*words)
    if outcome.code == 0:
        raise AcceptedError(outcome.out[-200:])
    assert outcome.code in (1, 2)
    if outcome.code == 2:  # of the parser of options: a frame around the message
        (framed,) = re.findall(r"╭.*?╮(.*)╰", outcome.err, re.DOTALL)
        return " ".join(framed.replace("│", " ").split())
    assert outcome.err.startswith("error: ")
    assert len(re.findall("^error: ", outcome.err, re.MULTILINE)) == 1
    return outcome.err.removeprefix("error: ").rstrip("\n")


TRAINED = """\
name: tiny
data: {kind: synthetic, dense_features: 2, train_samples: 512, test_samples: 64}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding:
  dim: 4
  tables: {user: {rows: 300}, item: {rows: 50}}
  features: {user: {}, items: {table: item, hotness: 3}}
train: {batch_size: 32, steps: 1}
"""
OF_PREPARED = """\
data: {kind: prepared, path: prepared}
model: {kind: dlrm, bottom: [4], top: [1]}
embedding: {dim: 4}
train: {batch_size: 16, steps: 1}
"""
SAMPLES = 100


def make_world(folder: Path) -> None:
    """Fills a folder with one of each thing that a user may have.

    ``tiny.yaml``, its ``run`` and what is left of that: ``plan.json`` and
    ``stats.json``; ``raw/clicks.csv``, what is ``prepared`` of it and
    ``prepared.yaml``; ``tables.yaml`` and ``fleet.yaml``.
    """
    with inside(folder):
        write("tiny.yaml", TRAINED)
        write("prepared.yaml", OF_PREPARED)
        write("tables.yaml", "- {name: user, rows: 300, dim: 16}\n")
        fleets = Path(__file__).parents[2] / "configs" / "fleets"
        write("fleet.yaml", (fleets / "this_cpu.yaml").read_text())
        lines = (f"{i % 2},{i / SAMPLES},a{i % 7},{i % 5}" for i in range(SAMPLES))
        write("raw/clicks.csv", "\n".join(["label,price,shop,day", *lines]) + "\n")
        for command in (
            "train tiny.yaml --workdir run",
            "data stats tiny.yaml --out stats.json",
            "data prepare csv dense.price=none --raw raw --out prepared --split random",
        ):
            outcome = runs.embark(*command.split())
            assert (outcome.code, outcome.err) == (0, ""), outcome.err
        write("plan.json", Path("run/plan.json").read_text())


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Makes a folder the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write(path: str, content: str | bytes) -> None:
    """Writes a file, and the folder that it is in."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


JUNK = bytes(range(128, 256)) + b"\x1b[31m\x07,\t" + bytes(range(200, 250))
"""No text in any encoding of ours, with what a terminal would obey."""
