"""An export that is damaged, or made up by somebody, is refused, and runs no code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import embark_jax as ej
from embark_jax._base.errors import UserError
from embark_jax.export import score
from tests import runs
from tests.export.changed import sign
from tests.runs import embark

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
ROWS = {"user": ["u1", "u2"], "item": ["7", None]}


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
        raw = "--raw", folder / "raw.csv", "--split", "random"
        for command in (
            ("data", "prepare", "csv", "ignore=[key]", *raw, "--out", folder / "data"),
            ("train", config, "--workdir", folder / "run"),
            ("export", folder / "run", "--out", folder / "export", "--trust-code"),
        ):
            done = embark(*command)
            assert (done.code, done.err) == (0, ""), done.err
    sys.modules.pop("summing")
    return folder


@pytest.fixture
def export(made, tmp_path) -> Path:
    return shutil.copytree(made / "export", tmp_path / "export")


def test_every_file_is_checked(export):
    """A bit of each file is flipped: at its beginning, in its middle, at its end."""
    files = [path for path in export.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"model.json", "score.py", "scoring.jax", "summing.py", "user.arrow"} < names
    for path in files:
        data = path.read_bytes()
        for place in (0, 9, len(data) // 2, len(data) - 2):
            flipped = bytearray(data)
            flipped[place] ^= 4
            path.write_bytes(flipped)
            for load in (score.Model, ej.load_scorer):
                with pytest.raises(UserError, match=r"copy|export the run again"):
                    load(export)
        path.write_bytes(data[:-2])
        with pytest.raises(UserError):
            score.Model(export)
        path.unlink()
        with pytest.raises((UserError, OSError)):
            score.Model(export)
        path.write_bytes(data)
    score.Model(export)


def test_the_script_checks_its_files(export):
    path = export / "tables/user.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    np.savez(export.parent / "samples.npz", dense=np.zeros((1, 0)))
    script = [sys.executable, "-I", export / "score.py", export.parent / "samples.npz"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "user.safetensors: is not as it was written (SHA-256)" in done.stderr
    assert "Traceback" not in done.stderr


def header(path: Path, change) -> None:
    """Changes the header of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    fields = json.loads(data[8 : 8 + size])
    text = json.dumps(change(fields) or fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


USER = "tables/user.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.json").write_text("{"), "model.json: is no JSON"),
        (lambda f: (f / "model.json").write_bytes(b"\xff"), "model.json: is no JSON"),
        (lambda f: (f / "model.json").write_text("[]"), "version is None, must be 2"),
        (lambda f: (f / "model.json").write_text("[" * 10**5), "is no JSON"),
        (lambda f: sign(f, lambda d: d.update(version=1)), "version is 1, must be 2"),
        (lambda f: sign(f, lambda d: d.pop("dense")), "model.json: dense is None"),
        (lambda f: sign(f, lambda d: d.update(step="2")), "model.json: step is '2'"),
        (lambda f: sign(f, lambda d: d.update(tables=[])), "model.json: tables is"),
        (
            lambda f: sign(f, lambda d: d["features"]["user"].update(table="x")),
            "features.user: has no table 'x'",
        ),
        (
            lambda f: sign(f, lambda d: d["files"].pop("dense.safetensors")),
            "files lack 'dense.safetensors'",
        ),
        (
            lambda f: sign(f, lambda d: d["tables"]["user"].update(dim=2)),
            "shape of 'user' is",
        ),
        (
            lambda f: (f / USER).write_bytes((2**62).to_bytes(8, "little") + b"{}"),
            "header has 4,611,686,018,427,387,904 bytes",
        ),
        (lambda f: header(f / USER, lambda h: {"user": 3}), "user: cannot be 3"),
        (
            lambda f: header(f / USER, lambda h: h["user"].update(shape=[2**60, 4])),
            "user: cannot be",
        ),
        (
            lambda f: header(f / USER, lambda h: h["user"].update(dtype="F128")),
            "user: cannot be",
        ),
        (
            lambda f: header(f / USER, lambda h: {"other": h["user"]}),
            "has no array 'user'",
        ),
    ],
)
def test_what_somebody_wrote_who_knows_the_format(export, damage, message):
    damage(export)
    if "model.json" not in message and "JSON" not in message and "ver" not in message:
        sign(export)
    for load in (score.Model, lambda folder: ej.load_scorer(folder, trust_code=True)):
        with pytest.raises(UserError) as error:
            load(export)
        assert message in str(error.value)
        assert str(export) in str(error.value)


@pytest.mark.parametrize("name", ["../outside", "link", "ABSOLUTE"])
def test_files_outside_the_export_are_not_read(export, name):
    outside = export.parent / "outside"
    shutil.copyfile(export / USER, outside)
    (export / "link").symlink_to(outside)
    name = str(outside) if name == "ABSOLUTE" else name

    def change(description):
        description["files"][name] = description["files"][USER]
        description["tables"]["user"]["file"] = name

    sign(export, change)
    for load in (score.Model, ej.load_scorer):
        with pytest.raises(UserError, match="must lie in this folder"):
            load(export)


def test_code_of_a_folder_runs_if_it_is_trusted(made, tmp_path):
    for folder in (made / "run", made / "export"):
        copy = shutil.copytree(folder, tmp_path / folder.name)
        path = copy / "code/summing.py"
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{MODEL}")
        if folder.name == "export":
            sign(copy)
        (tmp_path / "rows.csv").write_text("user,item\nu1,7\n")
        done = embark("predict", copy, "--in", tmp_path / "rows.csv")
        runs.assert_refused(done, str(path), "--trust-code")
        with pytest.raises(UserError, match=r"code/summing\.py.*trust_code=True"):
            ej.load_scorer(copy)
        assert not (tmp_path / "ran").exists()
        done = embark("predict", copy, "--in", tmp_path / "rows.csv", "--trust-code")
        assert (done.code, done.err) == (0, "")
        (tmp_path / "ran").unlink()
    done = embark("export", tmp_path / "run", "--out", tmp_path / "new")
    runs.assert_refused(done, "code/summing.py", "--trust-code")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "new").exists()


def test_models_of_one_name_keep_apart(made, tmp_path, monkeypatch):
    """Each has its own code, whatever lies in the working directory."""
    (tmp_path / "summing.py").write_text("raise RuntimeError('a stray file')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, paths = set(sys.modules), list(sys.path)
    logits = []
    for constant in (1, 3):
        copy = shutil.copytree(made / "export", tmp_path / f"export{constant}")
        text = MODEL.replace("CONSTANT = 1.0", f"CONSTANT = {constant}.0")
        (copy / "code/summing.py").write_text(text)
        (copy / "code/jax.py").write_text("raise RuntimeError('no file of the export')")
        sign(copy)
        found = ej.load_scorer(copy, trust_code=True).predict(ROWS)
        logits.append(np.log(found / (1 - found)))
    np.testing.assert_allclose(logits[1] - logits[0], 2, rtol=1e-5)
    assert "summing" not in sys.modules
    assert sys.path == paths
    new = {name for name in set(sys.modules) - modules if "summing" in name}
    assert len(new) == 2
    (copy / "code/summing.py").unlink()
    with pytest.raises(UserError, match=r"summing\.py: is missing"):
        ej.load_scorer(copy, trust_code=True)
    run = shutil.copytree(made / "run", tmp_path / "run")
    (run / "code/summing.py").unlink()
    (tmp_path / "summing.py").write_text(MODEL)
    with pytest.raises(UserError, match=r"summing\.py: no such file; the module"):
        ej.load_scorer(run, trust_code=True)
    sys.modules.pop("summing")


def test_code_is_never_a_link_or_a_cache(made, tmp_path):
    copy = shutil.copytree(made / "run", tmp_path / "run")
    path = copy / "code/summing.py"
    path.rename(tmp_path / "outside.py")
    path.symlink_to(tmp_path / "outside.py")
    with pytest.raises(UserError, match=r"is a link to .*, outside the folder"):
        ej.load_scorer(copy, trust_code=True)
    path.unlink()
    path.write_text(MODEL)
    ej.load_scorer(copy, trust_code=True)
    assert not (copy / "code/__pycache__").exists()


def test_columns_are_kept_beside_the_probability(made, tmp_path):
    rows, out = made / "raw.csv", tmp_path / "scores.csv"
    keep = "--keep", "key", "--keep", "user"
    command = "predict", made / "export", "--trust-code", "--in"
    done = embark(*command, rows, "--out", out, *keep)
    assert (done.code, done.err) == (0, "")
    found = pyarrow.csv.read_csv(out)
    assert found.column_names == ["key", "user", "probability"]
    given = pyarrow.csv.read_csv(rows)
    for name in ("key", "user"):
        assert found[name].to_pylist() == given[name].to_pylist()
    big = [2**64 - 1 - i for i in range(len(given))]
    given = given.set_column(1, "key", pyarrow.array(big, pyarrow.uint64()))
    pq.write_table(given, tmp_path / "rows.parquet", row_group_size=7)
    out = tmp_path / "scores.parquet"
    done = embark(*command, tmp_path / "rows.parquet", "--out", out, *keep)
    assert (done.code, done.err) == (0, "")
    kept = pq.read_table(out)
    assert kept["key"].to_pylist() == big
    np.testing.assert_allclose(kept["probability"], found["probability"], rtol=1e-6)
    done = embark(*command, rows, "--keep", "key")
    first, *_ = done.out.splitlines()
    assert first.split("\t") == ["0", f"{found['probability'][0].as_py():.6g}"]
    done = embark(*command, rows, "--keep", "kye")
    runs.assert_refused(done, "has no column 'kye'; did you mean key?")
