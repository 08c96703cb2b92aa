"""A run of whose files one was edited, or is another run's, gives no scores."""

import shutil
from pathlib import Path

import pytest

import embark_jax as ej
from embark_jax.checkpoint import CheckpointError
from tests import runs
from tests.runs import assert_refused, done, embark

pytestmark = pytest.mark.slow

CONFIG = """\
name: edited
data: {kind: prepared, path: DATA}
model: {kind: dcn, cross_layers: 1, deep: [4]}
embedding: {dim: 4}
train: {batch_size: 8, steps: 1}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with ``run``, and ``other`` of data whose items have each other's names,
    so that all tables have as many rows."""
    folder = tmp_path_factory.mktemp("edited")
    for name, step in (("data", 1), ("others", 3)):
        lines = (f"{i % 2},{i},u{i % 5},{min(i % 8 * step % 8, i)}" for i in range(40))
        raw = folder / f"{name}.csv"
        raw.write_text("\n".join(["label,price,user,item", *lines]) + "\n")
        words = "split=random", "dense.price=none", "--out", folder / name
        done("data", "prepare", "csv", "--raw", raw, *words)
    config = runs.write_config(folder, CONFIG.replace("DATA", str(folder / "data")))
    for name, data in (("run", "data"), ("other", "others")):
        done("train", config, f"data.path={folder / data}", "--workdir", folder / name)
    (folder / "rows.csv").write_text("price,user,item\n1,u1,3\n")
    return folder


@pytest.fixture
def run(made, tmp_path) -> Path:
    return shutil.copytree(made / "run", tmp_path / "run")


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("checkpoints", "values.tables.item is"),
        ("encoding", "values.tables.item is"),
        ("seed: 0", "seed is 0 in the checkpoint, 10 here"),
        ("compute_dtype: float32", "compute_dtype is float32 in the checkpoint"),
    ],
)
def test_scores_need_the_files_of_one_run(change, message, run, made, tmp_path):
    if (made / "other" / change).exists():
        shutil.rmtree(run / change)
        shutil.copytree(made / "other" / change, run / change)
    else:
        edit(run, change, change.replace("0", "10").replace("float32", "bfloat16"))
    for command in (
        ("predict", run, "--in", made / "rows.csv"),
        ("export", run, "--out", tmp_path / "export", "--no-onnx"),
    ):
        outcome = embark(*command)
        assert_refused(outcome, message, "was not trained by the files of its run")
        assert not outcome.out
    assert not (tmp_path / "export").exists()


def test_evaluations_need_the_values_and_the_dtype_of_training(run, made):
    for change, message in (
        (f"data.path={made / 'others'}", "values.tables.item is"),
        ("seed=1", "seed is 0 in the checkpoint, 1 here"),
    ):
        with pytest.raises(CheckpointError, match=message):
            ej.load_run(run, [change])
    edit(run, "compute_dtype: float32", "compute_dtype: bfloat16")
    with pytest.raises(CheckpointError, match="compute_dtype is float32"):
        ej.load_run(run)
    ej.load_run(run, ["model.compute_dtype=bfloat16"])  # what is asked for is no error
