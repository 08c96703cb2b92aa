"""Bad data, from the file to the message or to the count in the final record."""

import pytest

from embark_jax.data import DataError, SyntheticClicks
from tests import runs
from tests.prepare.raw_files import prepared, write_rows
from tests.runs import assert_refused, done, embark

SAMPLES, BATCH = 5_000, 500
ROWS = 3
"""Of the user table in tests of bad ids: two thirds of the users are beyond it."""
CONFIG = f"""\
name: bad
data: {{kind: prepared, path: DATA}}
model: {{kind: dlrm, bottom: [4], top: [1]}}
embedding: {{dim: 4, tables: {{user: {{rows: {ROWS}}}}}}}
train: {{batch_size: {BATCH}, steps: 2}}
"""


def bad_ids(batches) -> int:
    return sum(int((batch.ids["user"] >= ROWS).sum()) for batch in batches)


@pytest.mark.slow
def test_mended_ids_are_counted_also_over_a_resume(tmp_path):
    rows = [(i % 2, f"u{i % 3}", f"v{i % 7}") for i in range(SAMPLES)]
    write_rows(tmp_path / "rows.csv", ["label", "user", "item"], rows)
    data, run = prepared(tmp_path / "rows.csv", tmp_path / "data"), tmp_path / "run"
    config = runs.write_config(tmp_path, CONFIG.replace("DATA", str(data.folder)))
    test_set = bad_ids(data.test_batches(BATCH))
    for steps, resume in ((2, ()), (4, ("--resume",))):
        command = (
            "train",
            config,
            "embedding.on_bad_id=hash",
            f"train.steps={steps}",
            "--workdir",
            run,
        )
        outcome = done(*command, *resume)
        training = bad_ids(data.train_batch(step, BATCH) for step in range(steps))
        counts = {k: v for k, v in runs.final(run).items() if "bad_ids" in k}
        assert counts == {"bad_ids/user": training, "test_bad_ids/user": test_set}
        assert (
            f"training: {training:,} bad ids of 'user' were dropped or hashed\n"
            in outcome.out
        )
        assert f"the test set: {test_set:,} bad ids of 'user'" in outcome.out


@pytest.mark.slow
def test_steps_before_bad_data_are_kept(tmp_path, monkeypatch):
    """Also where no checkpoint was due."""
    good = SyntheticClicks.train_batch

    def train_batch(self, step, batch_size):
        if step == 3:
            raise DataError("row 1,501: junk")
        return good(self, step, batch_size)

    config = runs.write_config(tmp_path)
    changes = (
        "train.checkpoint_every=50",
        "train.steps=5",
        "mesh={nodes: 1, gpus_per_node: 1}",
    )
    command = "train", config, *changes, "--workdir", tmp_path / "run"
    with monkeypatch.context() as damaged:
        damaged.setattr(SyntheticClicks, "train_batch", train_batch)
        outcome = embark(*command)
    assert_refused(outcome, "row 1,501: junk")
    assert "a checkpoint holds all 3 good steps" in outcome.out
    assert "resumed at step 3 of 5" in done(*command, "--resume").out
