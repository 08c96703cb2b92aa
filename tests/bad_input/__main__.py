"""Makes some mistakes and prints the messages as a page of the documentation.

python -m tests.bad_input > docs/pages/reference/bad_input.md
"""

import os
import shutil
import tempfile
from pathlib import Path

# Read when JAX is imported: the tests' eight devices, on any machine.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from embark_jax.cli.errors import printable
from tests.bad_input.case import Case, inside, make_world, message_of, read_cases

MOST_SHOWN = 240
"""Characters of a message in the table."""

ABOUT = """\
# Messages for bad input

The tests enter {count} kinds of bad input as a user would (`tests/bad_input`). None is
silently accepted, none ends in a traceback, and none changes an existing file. Here is
the first of each sort and its message, as `python -m tests.bad_input` shows them.

| what the user does | message |
|---|---|
"""


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    entrances = read_cases()
    print(ABOUT.format(count=sum(map(len, entrances.values()))), end="")
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        world.mkdir()
        make_world(world)
        for case, *_ in entrances.values():
            print(row(case, world, Path(folder) / "copy"))


def row(case: Case, world: Path, folder: Path) -> str:
    """A line of the table: the mistake is made in a copy of the world."""
    shutil.copytree(world, folder)
    with inside(folder):
        if case.damage is not None:
            case.damage()
        said = message_of(case).replace(f"{folder}/", "")
    shutil.rmtree(folder)
    said = said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]} …"
    return f"| {case.given}: `{printable(case.call)}` | {cell(said)} |"


def cell(text: str) -> str:
    """Text in which nothing is markup, lines apart."""
    for character in "\\|*_>[]`":
        text = text.replace(character, f"\\{character}")
    return text.replace("<", "&lt;").replace("\n", "<br>")


if __name__ == "__main__":
    main()
