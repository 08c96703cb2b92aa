"""Two processes that write and read one checkpoint, each for its own device."""

import pytest

from embark_jax._base.errors import DataError
from embark_jax._base.object_store import StorageError
from embark_jax.checkpoint import CheckpointError, errors
from embark_jax.launch.one_host import exit_status
from tests.processes import outputs_of_two

PROCESS = """
import resource, sys, time
from pathlib import Path
import jax
port, index, folder = sys.argv[1:]
folder, index = Path(folder), int(index)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, index)
import numpy as np
from embark_jax.plans.placement import Placement
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.checkpoint import Checkpointer, CheckpointError
from embark_jax.launch.agreement import tell_all
from tests.embedding import problems
from tests.checkpoint.states import logical_tables, state_of

tables = TableSpec("a", 400_000, 4), TableSpec("b", 300_000, 4)
features = [FeatureSpec(table.name, table.name) for table in tables]

def make_plan(*placed):
    return problems.make_plan(features, placed, 2, 1, 2)

def assert_equal(found, expected):
    for mine, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        if jax.numpy.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = map(jax.random.key_data, (mine, theirs))
        for one, other in zip(mine.addressable_shards, theirs.addressable_shards):
            np.testing.assert_array_equal(one.data, other.data)

plan = make_plan(Placement(tables[0], "rb", 2, 1, (0, 1)), Placement(tables[1], "dp"))
other = make_plan(
    Placement(tables[0], "ub", 1, 2, (1, 0)), Placement(tables[1], "rb", 2, 1, (1, 0))
)
rows = logical_tables(tables, 0)
zeros = {name: np.zeros_like(each) for name, each in rows.items()}
state, embeddings = state_of(plan, rows)
blank, _ = state_of(plan, zeros)
moved, other_embeddings = state_of(other, zeros)
said = []

left = folder / "9.orbax-checkpoint-tmp"  # by a killed write
left.mkdir(parents=True, exist_ok=True)
tell_all("there")
if index == 0:  # which clears the folder, before the other writes into it
    time.sleep(2)
with Checkpointer(folder, {}, 2, say=said.append) as checkpoints:
    assert not left.exists()
    for step in (1, 2):
        checkpoints.save(state, step, embeddings, {})
    assert checkpoints.steps == [1, 2]
"""

RESTORE = """
    # Process 1 alone reads what is damaged; both must leave it out.
    if index == 0:
        file = folder / "2/arrays/storages.rb_4/c/1/0/0"
        data = bytearray(file.read_bytes())
        data[7_000] ^= 1
        file.write_bytes(data)
    tell_all("damaged")
    found, _ = checkpoints.restore(blank, embeddings)
    assert int(found.step) == 1
    assert any("left out" in line and "/2: is damaged" in line for line in said), said
    assert_equal(found._replace(step=state.step), state)
    found, _ = checkpoints.restore(moved, other_embeddings, 1)
    expected, _ = state_of(other, rows)
    assert_equal(found._replace(step=expected.step), expected)
print("good")
"""

FULL_DISK = """
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if index == 1:  # all but small files are too large
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        checkpoints.save(state, 3, embeddings, {})
        checkpoints.steps
    except CheckpointError as error:
        assert "3: the checkpoint could not be written (" in str(error), error
        assert "the newest is that of step 2" in str(error), error
    else:
        raise AssertionError("it is not complete")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    tell_all("tried")
    checkpoints.save(state, 3, embeddings, {})
    assert checkpoints.steps == [2, 3]
print("good")
"""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(RESTORE, id="damaged in one", marks=pytest.mark.slow),
        pytest.param(FULL_DISK, id="no room in one", marks=pytest.mark.slow),
    ],
)
def test_two_processes_do_alike(tmp_path, what):
    outputs = outputs_of_two(PROCESS + what, tmp_path / "run", timeout_s=300)
    for output in outputs:
        assert output.strip().endswith("good"), "\n".join(outputs)


def test_what_may_pass_in_one_process_may_in_the_others(monkeypatch):
    """They end with the exit status of the one that failed, and start again with it."""
    told = []

    def as_the_other(problem, topic):
        told.append(problem)
        return [told[0], problem]

    monkeypatch.setattr(errors, "tell_all", as_the_other)
    for error in (StorageError("gone"), OSError("full"), DataError("other data")):
        told.clear()

        def fail(error=error):
            raise error

        with pytest.raises(type(error)):
            errors.run_on_all(fail)
        with pytest.raises(CheckpointError, match=str(error)) as theirs:
            errors.run_on_all(lambda: None)
        assert exit_status(theirs.value) == exit_status(error)
