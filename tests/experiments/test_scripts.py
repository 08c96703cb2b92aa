"""The scripts of the experiments start, and their pages name what there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "experiments").glob("*/README.md"))
FILE = re.compile(r"\b(?:experiments|configs)/[\w./-]+\.(?:py|yaml|json)\b")
MODULE = re.compile(r"-m (experiments[\w.]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_commands_name_files_that_are_there(page):
    text = page.read_text("utf-8")
    files = [ROOT / name for name in FILE.findall(text)]
    files += [
        ROOT.joinpath(*name.split(".")).with_suffix(".py")
        for name in MODULE.findall(text)
    ]
    assert not [file for file in files if not file.exists()]
