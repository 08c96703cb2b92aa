"""A model of several tasks that two processes train, each on its own device."""

from __future__ import annotations

import json

import pytest

from tests.processes import outputs_of_two

PROCESS = """
import json, sys
import jax
port, index = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
from tests.train.test_tasks_two_processes import trained
assert len(jax.local_devices()) == 1
print(json.dumps(trained()))
"""


def trained():
    """Losses of some steps, then AUC and log loss of each task."""
    from embark_jax.train.device_batch import own_part
    from tests.train.test_tasks import BATCH, batch_of, make_trainer, mmoe

    trainer = make_trainer(mmoe(), gpus=2)
    batches = [batch_of(step) for step in range(3)]
    mine = [own_part(batch, BATCH) for batch in batches]
    losses = [result.loss for result in trainer.iterate_batches(mine)]
    tasks = trainer.evaluate(batches).tasks
    return losses + [figure for task in tasks for figure in (task.auc, task.log_loss)]


@pytest.mark.slow
def test_two_processes_train_as_one():
    outputs = outputs_of_two(PROCESS, timeout_s=120)
    expected = trained()
    for output in outputs:
        *_, last = output.strip().splitlines() or [""]
        assert last.startswith("["), output
        # Sums between processes go in another order than between devices.
        assert json.loads(last) == pytest.approx(expected, rel=1e-5)
