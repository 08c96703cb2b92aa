"""Names of JAX that it does not promise: which are used, and whether they are there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pages" / "reference" / "stability.md"
PRIVATE = re.compile(r"jax\.(_src|experimental|extend)\b")


def used() -> set[tuple[str, str]]:
    """Modules of JAX's internals and the names that are imported from them."""
    names = set()
    for folder in ("embark_jax", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and PRIVATE.match(
                    node.module or ""
                ):
                    names |= {(str(node.module), name.name) for name in node.names}
                elif isinstance(node, ast.Import):
                    assert not any(PRIVATE.match(name.name) for name in node.names)
    return names


@pytest.mark.parametrize(("module", "name"), sorted(used()))
def test_each_internal_name_is_there(module, name):
    internals = importlib.import_module(module)
    if not hasattr(internals, name):
        importlib.import_module(f"{module}.{name}")


def test_the_page_lists_them_all():
    text = PAGE.read_text()
    assert [name for _, name in used() if not re.search(rf"\b{name}\b", text)] == []
