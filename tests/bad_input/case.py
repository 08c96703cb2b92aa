"""Kinds of bad input, read from ``cases.yaml``, and what comes of them."""

import gzip
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from embark_jax.data.hashed_file import checksum_of
from tests import runs
from tests.bad_input import python

CASES = Path(__file__).with_name("cases.yaml")
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
JUNK = bytes(range(128, 256)) + b"\x1b[31m\x07,\t" + bytes(range(200, 250))
"""No text in any encoding of ours, with what a terminal would obey."""


class Case(NamedTuple):
    """One row of the table.

    Attributes:
      given: what is wrong, in words.
      call: what a user does: a command line, or an expression in Python.
      in_python: whether it is one.
      says: words that the message must have.
      damage: makes the input bad, in the working directory; None if the call does.
      leaves: a folder that the call may begin.
    """

    given: str
    call: str
    in_python: bool
    says: tuple[str, ...]
    damage: Callable[[], Any] | None = None
    leaves: str = ""


class AcceptedError(AssertionError):
    """Bad input went through."""


def read_cases() -> dict[str, list[Case]]:
    """The cases of each entrance."""
    return {
        entrance: list(_cases_of(**section))
        for entrance, section in yaml.safe_load(CASES.read_text("utf-8")).items()
    }


def _cases_of(
    cases: dict,
    call: str = "",
    python: str = "",
    file: str = "",
    says: str = "",
    leaves: str = "",
) -> Iterator[Case]:
    for given, how in cases.items():
        if isinstance(how, list):
            text, *expected = how
            act = (
                {"write": text}
                if file
                else {"call": (call or python).replace("{}", text)}
            )
            how = {"says": expected, **act}
        expected = how.pop("says")
        expected = [expected] if isinstance(expected, str) else expected
        words = how.pop("call", None)
        if words is None:
            words, expected = call, [*filter(None, [says]), *expected]
        damage = _damage(how, file)
        yield Case(given, words, bool(python), tuple(expected), damage, leaves)


def message_of(case: Case) -> str:
    """What is said to whoever makes this mistake in the working directory.

    An error that is not about input, such as a ``TypeError`` of ours, is not caught.

    Raises:
      AcceptedError: if nothing is said.
    """
    if case.in_python:
        try:
            found = eval(case.call, dict(vars(python)))
        except (ValueError, OSError) as error:
            return str(error)
        raise AcceptedError(f"gave {found!r:.200}")
    _, *words = shlex.split(case.call)
    outcome = runs.embark(*words)
    if outcome.code == 0:
        raise AcceptedError(outcome.out[-200:])
    assert outcome.code in (1, 2)
    if "╭" in outcome.err:  # of the parser of options: a frame around the message
        (framed,) = re.findall(r"╭.*?╮(.*)╰", outcome.err, re.DOTALL)
        return " ".join(framed.replace("│", " ").split())
    assert outcome.err.startswith("error: ")
    assert len(re.findall("^error: ", outcome.err, re.MULTILINE)) == 1
    return outcome.err.removeprefix("error: ").rstrip("\n")


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
        write("fleet.yaml", (fleets / "this_machine.yaml").read_text())
        lines = (f"{i % 2},{i / SAMPLES},a{i % 7},{i % 5}" for i in range(SAMPLES))
        write("raw/clicks.csv", "\n".join(["label,price,shop,day", *lines]) + "\n")
        for command in (
            "train tiny.yaml --workdir run",
            "data stats tiny.yaml --out stats.json",
            "data prepare csv dense.price=none --raw raw --out prepared split=random",
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


def _damage(how: dict[str, Any], file: str) -> Callable[[], Any] | None:
    """What becomes of the world, by the keys of a case."""
    path = how.pop("file", file)
    match how:
        case {"write": str(text)}:
            content = text.encode(how.get("encoding", "utf-8")).replace(b"JUNK", JUNK)
            return lambda: write(path, content)
        case {"write": texts}:
            return lambda: [write(*each) for each in texts.items()]
        case {"compress": text}:
            return lambda: write(path, gzip.compress(text.encode())[:-9])
        case {"cut": size}:
            return lambda: write(path, Path(path).read_bytes()[:size])
        case {"replace": (old, new)}:
            return lambda: write(path, Path(path).read_text().replace(old, new))
        case {"set": changes}:
            return lambda: _edit(path, changes)
        case {"drop": key}:
            return lambda: _edit(path, {key: None})
        case {"remove": name} if Path(name).suffix:
            return Path(name).unlink
        case {"remove": name}:
            return lambda: shutil.rmtree(name)
    assert not how, how
    return None


def _edit(path: str, changes: dict[str, Any]) -> None:
    """Sets values of JSON by their dotted keys, and its checksum if it has one; None
    removes a key."""
    data = json.loads(Path(path).read_text())
    for key, value in changes.items():
        *sections, last = key.split(".")
        section = data
        for name in sections:
            section = section[int(name) if isinstance(section, list) else name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    if "checksum" in data:
        data["checksum"] = checksum_of(data)
    write(path, json.dumps(data))
