"""Each notebook runs from a fresh kernel, and says what it should."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.ipynb"))
SECONDS = 120


def texts(notebook) -> str:
    """All that the cells printed."""
    return "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


def plots(notebook) -> int:
    return sum(
        "image/png" in output.get("data", ())
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_a_fresh_kernel(path, request):
    environment, prepared = dict(os.environ), ""
    if path.stem.startswith("2_movielens"):
        folder = request.getfixturevalue("movielens_folder")
        environment["EMBARK_DATA"] = str(folder.parent)
        prepared = str(request.getfixturevalue("movielens")())
    kept = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.source = cell.source.replace("../../data/movielens_100k", prepared)
    client = NotebookClient(
        fresh, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    python_path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    client.execute(env=environment | {"PYTHONPATH": python_path})
    assert plots(fresh) == plots(kept) >= 2
    assert len(texts(fresh).splitlines()) == len(texts(kept).splitlines())
