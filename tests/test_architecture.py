"""The shape of the repository: which way imports point, and what lies where."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from embark_kernels import optimizers

import embark_jax

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "embark_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    "_base",
    "plans",
    "statistics",
    "metrics",
    "planner",
    "report",
    "config",
    "simulator",
    "data",
    "prepare",
    "embedding",
    "models",
    "launch",
    "cache",
    "train",
    "checkpoint",
    "run",
    "export",
    "bench",
    "cli",
)
"""Rooms from the bottom up: one may import those before it."""

PLANNER_LAYERS = ("request", "cost", "search")
"""Folders of the planner, in the order of data."""

ONLY = {room: {"_base", "plans", "config"} for room in ("models", "data")}
ONLY["prepare"] = ONLY["data"] | {"data"}
"""Rooms that may import fewer than all below."""

WITHOUT_JAX = set(LAYERS[: LAYERS.index("embedding")])
JAX_PACKAGES = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
MAY_IMPORT_JAX = {
    ("plans/plan.py", "make_mesh"),
    ("metrics/pointwise.py", "to_host"),
    ("metrics/retrieval.py", None),
}
"""Functions that turn a plan into JAX's objects, or read arrays on devices, and the
index that searches there: what needs no device does not import it."""

UNDERSCORED = {"_replace", "_make", "_asdict", "_fields", "_exit"}
"""Public attributes of Python's own, by its documentation."""

MAY_IMPORT_PRIVATE = {
    ("embark_jax/launch/agreement.py", "jax._src.distributed"),
    (
        "kernels/embark_kernels/_mosaic.py",
        "jax._src.pallas.mosaic_gpu.interpret.params.InterpretGPUParams",
    ),
}
"""What JAX 0.10 has no public name for."""

TYPE_CHECKING = "TYPE_CHECKING"

FOLDERS = {"embark_jax", "kernels", "configs", "experiments", "tests", "docs"}
OPTIONAL_FOLDERS = {".ci", ".github"}
FILES = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
    "MANIFEST.in",
    "Makefile",
    ".gitignore",
    ".pre-commit-config.yaml",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """(dotted name, function or TYPE_CHECKING around it) of every import of a file."""

    def visit(node, function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        elif isinstance(node, ast.If) and ast.unparse(node.test) == TYPE_CHECKING:
            function = TYPE_CHECKING
        if isinstance(node, ast.Import):
            yield from ((alias.name, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: imports must be absolute"
            yield from (
                (f"{node.module}.{alias.name}", function) for alias in node.names
            )
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    return visit(ast.parse(path.read_text()), None)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer):
    allowed = ONLY.get(layer, set(LAYERS[: LAYERS.index(layer)])) | {layer}
    for path in (PACKAGE / layer).rglob("*.py"):
        imported = {
            name.split(".")[1]
            for name, _ in imports(path)
            if name.startswith("embark_jax.")
        }
        assert imported <= allowed, name_of(path)


def test_nothing_private_of_another_package_is_touched():
    """No attribute with an underscore that is not defined here, and no such import."""
    trees = {
        path: ast.parse(path.read_text())
        for folder in (PACKAGE, ROOT / "kernels")
        for path in folder.rglob("*.py")
    }
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    defined = set(UNDERSCORED)
    for _, node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined |= {node.attr} if ast.unparse(node.value) == "self" else set()
    private = re.compile(r"_[^_]")
    touched = [
        f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
        for path, node in nodes
        if isinstance(node, ast.Attribute)
        and private.match(node.attr)
        and node.attr not in defined
    ]
    imported = {
        (name_of(path), name)
        for path in trees
        for name, _ in imports(path)
        if not name.startswith("embark_") and any(map(private.match, name.split(".")))
    }
    assert not touched
    assert imported <= MAY_IMPORT_PRIVATE


def test_every_room_has_its_place():
    found = {path.relative_to(PACKAGE).parts[0] for path in MODULES}
    assert found - {"__init__.py"} == set(LAYERS)


@pytest.mark.parametrize("folder", PLANNER_LAYERS)
def test_imports_inside_the_planner_point_back(folder):
    """Its folders follow each other as data does; what is in one may be of its own."""
    allowed = set(PLANNER_LAYERS[: PLANNER_LAYERS.index(folder) + 1])
    for path in (PACKAGE / "planner" / folder).rglob("*.py"):
        found = [name.split(".") for name, _ in imports(path)]
        inside = {name[2] for name in found if name[:2] == ["embark_jax", "planner"]}
        assert inside <= allowed, name_of(path)


def test_planning_and_data_need_no_jax():
    found = {
        (path.relative_to(PACKAGE).as_posix(), function)
        for room in WITHOUT_JAX
        for path in (PACKAGE / room).rglob("*.py")
        for name, function in imports(path)
        if name.split(".")[0] in JAX_PACKAGES and function != TYPE_CHECKING
    }
    assert found <= MAY_IMPORT_JAX


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("kernels/embark_kernels", r"embark_jax\b"),
        ("experiments", r"tests\b"),
        ("tests", r"tests\.(.*\.)?test_"),  # what is shared has a module of its own
    ],
)
def test_what_nobody_may_import(folder, others):
    for path in (ROOT / folder).rglob("*.py"):
        found = {f"{name}." for name, _ in imports(path)}
        assert not [name for name in found if re.match(others, name)], name_of(path)


def test_public_names_are_there():
    rules = {rule.__name__ for rule in optimizers.ROW_OPTIMIZERS.values()}
    assert rules | {"RowOptimizer"} == set(optimizers.__all__)
    places = embark_jax._PLACES
    assert all(hasattr(embark_jax, name) for name in places)
    assert places.keys() == set(dir(embark_jax))
    assert callable(embark_jax.plan)  # there is no room of that name
    assert not hasattr(embark_jax, "Trainr")


@pytest.mark.parametrize("module", ["", ".cli", ".launch.one_host"])
def test_jax_is_not_imported_before_it_is_needed(module):
    program = f"import embark_jax{module}, sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not JAX_PACKAGES & set(run.stdout.split())


def test_a_built_package_holds_the_configs():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]
    patterns = settings["package-data"]["embark_jax"]
    assert "py.typed" in patterns  # type checkers read the package
    patterns = [each for each in patterns if each != "py.typed"]
    shipped = {each.resolve() for pattern in patterns for each in PACKAGE.glob(pattern)}
    listed = {each for each in (ROOT / "configs").rglob("*") if each.is_file()}
    assert shipped == listed


def test_no_package_takes_the_name_kernels():
    # A well-known package on the index is called so; ours is kernels/embark_kernels.
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert {path.name for path in (ROOT / "kernels").iterdir() if path.is_dir()} - {
        "__pycache__"
    } == {"embark_kernels"}


def test_the_top_level_holds_what_it_should():
    names = {path.name for path in ROOT.iterdir()} - {".git"}
    ignored = subprocess.run(
        ["git", "check-ignore", "--stdin"],
        input="\n".join(names),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ignored.returncode not in (0, 1):  # 1: nothing is ignored
        pytest.skip(f"not a git checkout: {ignored.stderr.strip()}")
    names -= set(ignored.stdout.split())
    folders = {name for name in names if (ROOT / name).is_dir()}
    assert folders - OPTIONAL_FOLDERS == FOLDERS
    assert names - folders <= FILES
