"""The documentation: its code runs, its links lead somewhere, nothing is left out."""

import json
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml
from typer.core import TyperGroup

import embark_jax
from docs import pictures, site_reference
from embark_jax import cli
from embark_jax._base.config import each_section
from embark_jax.config import ExperimentConfig, reading
from embark_jax.config.table_lists import read_table_list
from embark_jax.data.columns import Columns
from embark_jax.plans import fleet
from tests import runs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "pages"
EXPERIMENTS = sorted(ROOT.glob("experiments/*/README.md"))
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
PAGES += EXPERIMENTS
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)|^\[\w+\]: (\S+)", re.M)
PLACEHOLDERS = {"CONFIG", "COMMAND", "DIR"}


class Block(NamedTuple):
    """A block of code of a page.

    Attributes:
      language: such as "python".
      title: name of the file that it shows; "" if it shows none.
      code: what is in it.
    """

    language: str
    title: str
    code: str


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    fences = re.finditer(
        r"^```(\w+)([^\n]*)\n(.*?)^```$", page.read_text(), re.M | re.S
    )
    for language, rest, code in (fence.groups() for fence in fences):
        if language in languages:
            title = re.search(r'title="(.*?)"', rest)
            yield Block(language, title[1] if title else "", code)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each ``embark`` command of a page."""
    for block in blocks(page, "sh"):
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removesuffix("&"), comments=True)
            if words and Path(words[0]).name == "embark":
                yield words[1:]


def understood(words: list[str]) -> tuple[str, dict]:
    """The command that these words call and its parameters.

    Raises:
      typer.BadParameter: if it does not take them.
    """
    command: Any = runs.get_command(cli.app)
    while isinstance(command, TyperGroup):
        command, words = command.commands[words[0]], words[1:]
    name = str(command.name)
    return name, dict(command.make_context(name, words).params)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_ours(page):
    for words in commands(page):
        try:
            name, params = understood(words)
        except Exception as error:
            if "does not exist" not in str(error):  # but for files of the reader's own
                raise
            continue
        file = params.get("config_file")
        if name in ("train", "plan", "search", "simulate", "evaluate") and file:
            keys = [key for key in params["overrides"] or () if "fleet.yaml" not in key]
            if (ROOT / file).exists():
                reading.load(ROOT / file, keys)
            elif str(file) in reading.shipped():
                reading.load(file, keys)
            elif name != "evaluate" or file.suffix:  # else the folder of a run
                assert file.name in PLACEHOLDERS | titles(), words


@pytest.mark.slow
def test_steps_are_as_long_as_the_tutorial_says():
    page = (DOCS / "tutorials/reading_a_plan.md").read_text()
    said = re.findall(r"^# (\d+\.\d+) ms.*\nembark plan (.*)$", page, re.M)
    for step_ms, words in said:
        plan = runs.done("plan", *words.split(), "--no-advice", "--json").out
        assert f"{json.loads(plan)['step_ms']:.2f}" == step_ms, words
    assert len(said) == 3


def titles() -> set[str]:
    """Names of files that some page shows, or tells how to make."""
    return {block.title for page in PAGES for block in blocks(page, "yaml", "gin")}


def test_gin_is_understood(tmp_path):
    page = DOCS / "howto/configs.md"
    for block in blocks(page, "gin"):
        (tmp_path / block.title).write_text(block.code)
    loaded = 0
    for name, *words in commands(page):
        if name == "train" and (tmp_path / words[0]).exists():
            _, params = understood(["train", str(tmp_path / words[0]), *words[1:]])
            reading.load(params["config_file"], params["overrides"] or ())
            loaded += 1
    assert loaded


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_yaml_is_understood(page, tmp_path):
    for block in blocks(page, "yaml"):
        data, path = yaml.safe_load(block.code), tmp_path / "shown.yaml"
        path.write_text(block.code)
        if "device" in data:
            fleet.load(str(path))
        elif "tables" in data:
            read_table_list(block.code)
        elif "label" in data:
            Columns.model_validate(data)
        else:
            if "data" not in data:
                path.write_text("data: {kind: synthetic}\n" + block.code)
            reading.load(path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for inline, defined in LINK.findall(page.read_text()):
        target = inline or defined
        if "://" not in target:
            assert (page.parent / target).exists(), target


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Runs a command as a reader would, with ``embark`` on the path."""
    (folder / "bin").mkdir(exist_ok=True)
    embark = folder / "bin" / "embark"
    embark.write_text(
        f"#!{sys.executable}\nfrom embark_jax.cli import main\nmain()\n", "utf-8"
    )
    embark.chmod(0o755)
    outcome = subprocess.run(
        command,
        cwd=folder,
        env=environment
        | {"PATH": f"{embark.parent}:{os.environ['PATH']}"}
        | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def run_python(codes: list[str], folder: Path) -> None:
    """Runs blocks of a page as one program, in a process that begins with what programs
    import, which takes longer than most of them."""
    program = folder / "page.py"
    program.write_text("\n".join(codes))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["embark_jax.run.training", "optax", "matplotlib.pyplot"]
    )
    process = processes.Process(target=run_program, args=(program,))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / "said").read_text()


def run_program(program: Path) -> None:
    os.chdir(program.parent)
    sys.path.insert(0, str(program.parent))
    with open("said", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        runpy.run_path(str(program), run_name="__main__")


def test_the_example_of_the_readme_trains(capsys):
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example.code, "README.md", "exec"), {})
    *_, loss, auc = capsys.readouterr().out.splitlines()
    found, best = map(float, auc.split(" of "))
    # One device, 300 steps: far from chance and not beyond the best attainable.
    assert 0.6 < found < best
    assert 0 < float(loss.removeprefix("loss ")) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_tutorial_runs_as_it_is_read(page, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = dict(os.environ)
    if page.stem == "next_item":  # trains so long that it is worth optimizing programs
        environment.pop("XLA_FLAGS", None)
    waiting: list[str] = []
    for block in blocks(page, "python", "sh", "yaml"):
        if block.title:
            (tmp_path / block.title).write_text(block.code)
            continue
        if block.language == "python":
            waiting.append(block.code)
            continue
        if waiting:  # before the files are used that it makes
            run_python(waiting, tmp_path)
            waiting = []
        if block.language == "sh" and not PLACEHOLDERS & set(block.code.split()):
            run(["bash", "-euc", block.code], tmp_path, environment)
    run_python(waiting, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in TUTORIALS and page.is_relative_to(DOCS)],
    ids=name_of,
)
def test_python_of_other_pages_runs(page, tmp_path):
    if codes := [block.code for block in blocks(page, "python")]:
        run_python(codes, tmp_path)


def test_every_public_name_is_in_the_reference():
    shown = set(
        re.findall(r"^::: (\S+)$", (DOCS / "reference/api.md").read_text(), re.M)
    )
    optimizers = "embark_kernels.optimizers"
    places = {
        optimizers if place.startswith(optimizers) else place.replace(":", ".")
        for place in vars(embark_jax)["_PLACES"].values()
    }
    assert places == shown


def test_every_command_and_option_is_explained():
    page = site_reference.commands()
    group = typer.main.get_command(cli.app)
    for name, command in site_reference.each_command(group, "embark"):
        assert f"## {name} " in page
        assert command.help, name
        unexplained = [
            parameter.name
            for parameter in command.params
            if parameter.name != "help" and not getattr(parameter, "help", None)
        ]
        assert not unexplained, name


def test_every_config_key_is_explained():
    page = site_reference.config_keys()
    configs = each_section(ExperimentConfig)
    for prefix, section in (*configs, *each_section(Columns)):
        assert f"`{prefix}`" in page or not prefix
        for name, field in section.model_fields.items():
            assert name == "kind" or field.description, f"{prefix}.{name}"
            assert name == "kind" or f"| `{name}` |" in page


def test_pictures_are_as_their_program_draws_them():
    for draw in pictures.PICTURES:
        path = pictures.FOLDER / f"{draw.__name__}.svg"
        assert path.read_text() == draw().svg()
