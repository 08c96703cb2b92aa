"""Sums of plain XLA on a GPU are atomic additions, not loops of compare-and-swap.

A loop is up to 2,000 times slower where many gradients are of the same row
(https://github.com/jax-ml/jax/issues/38806). jaxlib compiled float32 additions of rows
up to 64 wide to such loops before 0.11.1.
"""

import jax
import pytest

import embark_jax as ej
from tests.compiled import compile_step, h100_mesh

LOOPS = pytest.mark.xfail(
    jax.__version_info__ < (0, 11, 1),
    reason="jaxlib makes loops",
    raises=AssertionError,
    strict=True,
)


@LOOPS
@pytest.mark.parametrize("width", [4, 64])
def test_no_sum_is_a_loop_of_compare_and_swap(width, tmp_path):
    """In a step with tables in all clusters, one with hot rows."""
    tables = [ej.TableSpec(name, 100_000, width) for name in ("dp", "rb", "ub", "hot")]
    compile_step(
        ej.plan(
            tables,
            [ej.FeatureSpec(table.name, hotness=4) for table in tables],
            ej.fleets.dgx_h100(1, 2),
            2 * 512,
            forced={
                "dp": ej.ForcedPlacement("dp"),
                "rb": ej.ForcedPlacement("rb", 2),
                "ub": ej.ForcedPlacement("ub", 2),
                "hot": ej.ForcedPlacement("ub", 2, hot_rows=1000),
            },
        ),
        h100_mesh(1, 2),
        ej.RowwiseAdagrad(0.1),
        bottom=(64,),
        top=(64, 1),
        rank=16,
        compiler_options={
            "xla_dump_to": str(tmp_path),
            "xla_dump_emitter_re": "ptx",
        },
    )
    programs = [path.read_text() for path in tmp_path.glob("*.ptx")]
    words = {word for program in programs for word in program.split()}
    operations = [word for word in words if word.startswith(("atom.", "red."))]
    assert operations, "rows are added up"
    assert not [operation for operation in operations if ".cas." in operation]
