"""An export that is damaged, or made up by somebody, is refused, and runs no code."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import embark_jax as ej
from embark_jax._base.errors import UserError
from embark_jax._base.files import read_arrow, write_arrow
from embark_jax.data.hashed_file import HashedFile, checksum_of, xxh3_of
from tests import runs
from tests.runs import done, embark

MODEL = """\
import jax.numpy as jnp
from flax import nnx

CONSTANT = 1.0

class Sum(nnx.Module):
    def __init__(self, shapes, dense_features, *, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, dense, embeddings):
        return CONSTANT + self.scale * sum(each.sum(1) for each in embeddings.values())
"""
CONFIG = """\
name: own
data: {kind: prepared, path: DATA}
model: {kind: "summing:Sum"}
embedding: {dim: 4}
train: {batch_size: 8, steps: 2}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with ``run`` and its ``export``, of a model in a file beside them."""
    folder = tmp_path_factory.mktemp("own")
    lines = (f"{i % 2},{i},u{i % 5},{i % 8}" for i in range(40))
    (folder / "raw.csv").write_text("\n".join(["label,key,user,item", *lines]) + "\n")
    (folder / "summing.py").write_text(MODEL)
    config = runs.write_config(folder, CONFIG.replace("DATA", str(folder / "data")))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        raw = "--raw", folder / "raw.csv", "split=random"
        for command in (
            ("data", "prepare", "csv", "ignore=[key]", *raw, "--out", folder / "data"),
            ("train", config, "--workdir", folder / "run"),
            ("export", folder / "run", "--out", folder / "export", "--trust-code"),
        ):
            done(*command)
        sys.modules.pop("summing")
        yield folder
    sys.modules.pop("summing", None)


@pytest.fixture
def export(made, tmp_path) -> Path:
    return shutil.copytree(made / "export", tmp_path / "export")


def sign(
    folder: Path, change: Callable[[dict[str, Any]], Any] = lambda it: None
) -> None:
    """Changes ``model.json``, with all checksums as they then must be."""
    path = folder / "model.json"
    description = json.loads(path.read_text())
    for file in description["files"]:
        file["bytes"] = (folder / file["file"]).stat().st_size
        file["xxh3"] = xxh3_of(folder / file["file"])
    change(description)
    description["checksum"] = checksum_of(description)
    path.write_text(json.dumps(description))


def test_every_file_is_checked(export):
    """A bit of each file is flipped: at its beginning, in its middle, at its end."""
    files = [path for path in export.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"model.json", "model.onnx", "dense.jax", "user.arrow"} < names
    for path in files:
        data = path.read_bytes()
        for offset in (0, 9, len(data) // 2, len(data) - 2):
            flipped = bytearray(data)
            flipped[offset] ^= 4
            path.write_bytes(flipped)
            with pytest.raises(UserError, match=r"copy|export the run again"):
                ej.load_scorer(export)
        path.write_bytes(data[:-2])
        with pytest.raises(UserError):
            ej.load_scorer(export)
        path.unlink()
        with pytest.raises((UserError, OSError)):
            ej.load_scorer(export)
        path.write_bytes(data)
    ej.load_scorer(export)


def described(change):
    """Damages ``model.json``."""
    return lambda folder: sign(folder, change)


def encoded(change):
    """Damages the manifest of the encoding."""

    def damage(folder: Path) -> None:
        path = folder / "encoding/data.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest | {"checksum": checksum_of(manifest)}))

    return damage


def vocabulary(table: str, values):
    """Writes other values into a vocabulary."""

    def damage(folder: Path) -> None:
        name = f"vocabulary/{table}.arrow"
        path = folder / "encoding" / name
        count = len(read_arrow(path))
        write_arrow(path, pa.table({"key": list(values(count))}))

        file = HashedFile.of(folder / "encoding", name).model_dump()
        encoded(lambda m: m["tables"][table].update(file=file))(folder)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.json").write_text("[" * 10**5), "the file: Invalid"),
        (described(lambda d: d.update(version=2)), "version: Input should be 6"),
        (described(lambda d: d.update(extra=1)), "model.json: extra: Extra inputs"),
        (
            encoded(lambda m: m["features"]["user"].update(hotness=10**12)),
            "features.user.hotness: Input should be less than",
        ),
        (
            vocabulary("user", range),
            "user.arrow: column 'key' has int64, must have text, as the features of",
        ),
    ],
)
def test_what_somebody_wrote_who_knows_the_format(export, damage, message):
    damage(export)
    if "model.json" not in message and "version" not in message:
        with contextlib.suppress(ValueError, RecursionError):  # of what is no JSON
            sign(export)
    with pytest.raises(UserError) as error:
        ej.load_scorer(export)
    assert message in str(error.value)
    assert str(export) in str(error.value)


def test_layers_in_jax_that_are_none_are_refused(made, tmp_path):
    export = tmp_path / "export"
    options = "--trust-code", "--no-onnx"
    said = done("export", made / "run", "--out", export, *options).out
    assert f"`embark predict {export} --in FILE` scores rows" in said
    layers = (export / "dense.jax").read_bytes()
    for damaged in (b"garbage", layers[: len(layers) // 2]):
        (export / "dense.jax").write_bytes(damaged)
        sign(export)
        with pytest.raises(UserError, match=r"dense\.jax: jax\.export does not take"):
            ej.load_scorer(export)


@pytest.mark.parametrize("name", ["../outside", "link", "ABSOLUTE"])
def test_files_outside_the_export_are_not_read(export, name):
    outside = export.parent / "outside"
    shutil.copyfile(export / "dense.safetensors", outside)
    (export / "link").symlink_to(outside)
    name = str(outside) if name == "ABSOLUTE" else name

    def list_it(description):
        (dense,) = (
            file for file in description["files"] if file["file"] == "dense.safetensors"
        )
        description["files"].append(dense | {"file": name})

    sign(export, list_it)
    with pytest.raises(UserError, match="must lie in this folder"):
        ej.load_scorer(export)

    # Nor by what the graph names.
    sign(export, lambda description: description["files"].pop())
    path = export / "model.onnx"
    graph = onnx.load(path, load_external_data=False)
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    path.write_bytes(graph.SerializeToString())
    sign(export)
    with pytest.raises(UserError, match=r"model\.onnx: onnxruntime does not take it"):
        ej.load_scorer(export)


def test_code_of_a_run_runs_if_it_is_trusted(made, tmp_path, monkeypatch):
    run = made / "run"
    (tmp_path / "summing.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\n{MODEL}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "summing", raising=False)
    (tmp_path / "rows.csv").write_text("user,item\nu1,7\n")
    outcome = embark("predict", run, "--in", tmp_path / "rows.csv")
    runs.assert_refused(outcome, "summing:Sum", "--trust-code")
    with pytest.raises(UserError, match=r"summing:Sum.*trust_code=True"):
        ej.load_scorer(run)
    outcome = embark("export", run, "--out", tmp_path / "new")
    runs.assert_refused(outcome, "summing:Sum", "--trust-code")
    runs.assert_refused(embark("evaluate", run), "summing:Sum", "--trust-code")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "new").exists()
    done("predict", run, "--in", tmp_path / "rows.csv", "--trust-code")
    assert (tmp_path / "ran").exists()
    done("evaluate", run, "--trust-code")


def test_the_command_scores_an_export_without_jax(made, tmp_path):
    program = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['jaxlib'] = None  # to import them raises\n"
        "from embark_jax.cli import main\nmain()\n"
    )
    command = "predict", made / "export", "--in", made / "raw.csv"
    out = tmp_path / "scores.csv"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "compared with their labels: AUC" in done.stdout
    expected = ej.load_scorer(made / "run", trust_code=True).predict(made / "raw.csv")
    probabilities = pyarrow.csv.read_csv(out)["probability"]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6)


def test_columns_are_kept_beside_the_probability(made, tmp_path):
    rows, out = made / "raw.csv", tmp_path / "scores.csv"
    keep = "--keep", "key", "--keep", "user"
    command = "predict", made / "export", "--in"
    done(*command, rows, "--out", out, *keep)
    found = pyarrow.csv.read_csv(out)
    assert found.column_names == ["key", "user", "probability"]
    given = pyarrow.csv.read_csv(rows)
    for name in ("key", "user"):
        assert found[name].to_pylist() == given[name].to_pylist()
    big = [2**64 - 1 - i for i in range(len(given))]
    given = given.set_column(1, "key", pyarrow.array(big, pyarrow.uint64()))
    pq.write_table(given, tmp_path / "rows.parquet", row_group_size=7)
    out = tmp_path / "scores.parquet"
    done(*command, tmp_path / "rows.parquet", "--out", out, *keep)
    kept = pq.read_table(out)
    assert kept["key"].to_pylist() == big
    np.testing.assert_allclose(kept["probability"], found["probability"], rtol=1e-6)
    outcome = embark(*command, rows, "--keep", "key")
    first, *_ = outcome.out.splitlines()
    assert first.split("\t") == ["0", f"{found['probability'][0].as_py():.6g}"]
    outcome = embark(*command, rows, "--keep", "kye")
    runs.assert_refused(outcome, "has no column 'kye'; did you mean key?")
