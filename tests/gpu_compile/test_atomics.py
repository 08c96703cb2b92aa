"""What a step on a GPU adds by atomics.

With the kernels it adds no float so, since the order of atomic additions is not the
same in two runs. Sums of plain XLA are atomic additions, not loops of compare-and-swap:
a loop is up to 2,000 times slower where many gradients are of the same row
(https://github.com/jax-ml/jax/issues/38806). jaxlib compiled float32 additions of rows
up to 64 wide to such loops before 0.11.1.
"""

import re
from pathlib import Path

import jax
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax import models
from embark_jax.config.models import section_of
from embark_jax.train.absent import absent_mesh, lower_model
from embark_jax.train.state import Optimizers
from embark_jax.train.step_model import step_model
from tests.compiled import compile_step, h100_mesh

LOOPS = pytest.mark.xfail(
    jax.__version_info__ < (0, 11, 1),
    reason="jaxlib makes loops",
    raises=AssertionError,
    strict=True,
)


OPTIONS = {
    "dlrm_v4": {"content": "past", "compute_dtype": "bfloat16"},
    "next_item": {
        "encoder": "sasrec",
        "every_position": True,
        "compute_dtype": "bfloat16",
    },
}
"""In bfloat16 the kernel of attention takes part."""


def dump(folder: Path) -> dict[str, str]:
    """Options of XLA that write its kernels to a folder."""
    return {"xla_dump_to": str(folder), "xla_dump_emitter_re": "ptx"}


def atomics(tmp_path, devices: int, width: int, **options) -> set[str]:
    """The atomic operations of a step with tables in all clusters, one of them with hot
    rows, and one with column shards."""
    names = ("dp", "rb", "ub", "hot", "columns")
    tables = [ej.TableSpec(name, 100_000, width) for name in names]
    shards = devices
    compile_step(
        ej.plan(
            tables,
            [ej.FeatureSpec(table.name, hotness=4) for table in tables],
            ej.fleets.dgx_h100(1, devices),
            devices * 512,
            forced={
                "dp": ej.ForcedPlacement("dp"),
                "rb": ej.ForcedPlacement("rb", shards),
                "ub": ej.ForcedPlacement("ub", shards),
                "hot": ej.ForcedPlacement("ub", shards, hot_rows=1000),
                "columns": ej.ForcedPlacement("rb", 1, shards),
            },
        ),
        h100_mesh(1, devices),
        ej.RowwiseAdagrad(0.1),
        bottom=(64,),
        top=(64, 1),
        rank=16,
        compiler_options=dump(tmp_path),
        **options,
    )
    return atomics_of(tmp_path)


def atomics_of(dumped: Path) -> set[str]:
    """The atomic operations of dumped programs."""
    programs = [path.read_text() for path in dumped.glob("*.ptx")]
    assert programs
    words = {word for program in programs for word in program.split()}
    return {word for word in words if word.startswith(("atom.", "red."))}


def additions_of_floats(operations: set[str], kernels: str) -> list[str]:
    """Those of floats among operations, and in what kernels of Mosaic have printed."""
    operations |= set(re.findall(r"(?:atom|red)\.\S+", kernels))
    return [each for each in operations if re.search(r"\.b?f(16|32|64)|\.cas\.", each)]


@LOOPS
@pytest.mark.parametrize("width", [4, 64])
def test_no_sum_is_a_loop_of_compare_and_swap(width, tmp_path):
    operations = atomics(tmp_path, 2, width)
    assert operations, "rows are added up"
    assert not [operation for operation in operations if ".cas." in operation]


@pytest.mark.parametrize("devices", [1, 8])
def test_with_the_kernels_no_float_is_added_by_an_atomic(
    devices, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    operations = atomics(tmp_path, devices, 64, implementation="mosaic_gpu")
    kernels = capfd.readouterr().out
    assert "sum_bags" in kernels
    assert not additions_of_floats(operations, kernels)


@pytest.mark.parametrize("kind", ["hstu", "dlrm_v4", "next_item"])
def test_sequence_models_add_no_float_by_an_atomic(kind, tmp_path, capfd, monkeypatch):
    """Their vectors of positions, and the bias by distance of HSTU, are read at many
    places at once."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    tables = [ej.TableSpec(name, 1000, 64) for name in ("user", "item")]
    features = [
        ej.FeatureSpec("user"),
        ej.FeatureSpec("item"),
        ej.FeatureSpec("past", "item", hotness=50, pooling="none"),
    ]
    machines = ej.fleets.dgx_h100(1, 2)
    plan = ej.plan(tables, features, machines, 1024)
    collection = ej.EmbeddingCollection(
        plan, absent_mesh(machines), implementation="mosaic_gpu"
    )
    options = {"history": {"past": "item"}, **OPTIONS.get(kind, {})}
    model = models.build(
        section_of(kind)(**options), collection.output_shapes, 13, nnx.Rngs(0)
    )
    optimizers = Optimizers(optax.adagrad(0.01), ej.RowwiseAdagrad(0.1))
    lowered, _ = lower_model(collection, step_model(model), optimizers, 13)
    lowered.compile(dump(tmp_path))
    operations = atomics_of(tmp_path)
    assert not additions_of_floats(operations, capfd.readouterr().out)
