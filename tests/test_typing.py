"""What a type checker sees of an installed package."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import embark_jax

ROOT = Path(__file__).parents[1]
PROGRAM = """\
import embark_jax as ej
from embark_kernels import optimizers

tables, features = [ej.TableSpec("a", 10, 4)], [ej.FeatureSpec("a")]
plan = ej.plan(tables, features, ej.fleets.dgx_h100(), 8)
rule: optimizers.RowOptimizer = ej.SGD(0.1)
wrong: int = plan
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_public_names_of_a_wheel(tmp_path):
    pytest.importorskip("pyright")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    build += ["-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert (tmp_path / "site" / "embark_jax" / "py.typed").exists()
    names = [f"ej.{name}" for name in dir(embark_jax)]
    program = tmp_path / "program.py"
    program.write_text("\n".join([PROGRAM, *names]))
    settings = {"include": ["program.py"], "extraPaths": [str(tmp_path / "site")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)],
        cwd=tmp_path,
        env={"PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    found = json.loads(checked.stdout)["generalDiagnostics"]
    errors = [each["message"] for each in found if each["severity"] == "error"]
    assert len(errors) == 1, errors
    assert '"Plan" is not assignable to "int"' in errors[0]
