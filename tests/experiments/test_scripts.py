"""The scripts of the experiments start, and their pages name what there is."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.results import output_of

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "experiments").glob("*/README.md"))
FILE = re.compile(r"\b(?:experiments|configs)/[\w./-]+\.(?:py|yaml|json)\b")
MODULE = re.compile(r"-m (experiments[\w.]+)")
TAKE_NOTHING = ("peer.py", "ours.py", "table.py", "ask_torchrec.py", "embark.py")
"""Scripts that others start or that have no options."""
SCRIPTS = [
    path
    for path in sorted((ROOT / "experiments").glob("*/*.py"))
    if "__main__" in path.read_text() and path.name not in TAKE_NOTHING
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_commands_name_files_that_are_there(page):
    text = page.read_text("utf-8")
    files = [ROOT / name for name in FILE.findall(text)]
    files += [
        ROOT.joinpath(*name.split(".")).with_suffix(".py")
        for name in MODULE.findall(text)
    ]
    assert not [file for file in files if not file.exists()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_a_script_says_what_it_takes(script):
    if "pyspark" in script.read_text():
        pytest.importorskip("pyspark")
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, script, "--help"],
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_results_of_a_part_never_take_the_place_of_the_committed_ones(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--scratch-folder")
    parser.add_argument("--out", type=Path)
    committed = Path("committed.json")

    def output(*words: str) -> Path:
        given = parser.parse_args(words)
        return output_of(parser, given, committed, free=["scratch_folder"])

    assert output() == output("--scratch-folder", "x") == committed
    assert output("--only", "dlrm", "--out", "part.json") == Path("part.json")
    with pytest.raises(SystemExit):
        output("--only", "dlrm")
    assert "--only gives other results than committed.json" in capsys.readouterr().err
    writers = [path for path in SCRIPTS if '"--out"' in path.read_text()]
    assert len(writers) > 5
    for path in writers:  # none has the committed file as its default
        assert 'add_argument("--out", type=Path, default' not in path.read_text(), path
