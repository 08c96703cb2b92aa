"""What is trained in this experiment, and which of its rows are hot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embark_jax.config import ExperimentConfig, reading
from embark_jax.run import experiment
from embark_jax.run.experiment import Experiment
from embark_jax.run.planning import hot_row_bytes

CONFIGS = Path(__file__).parents[2] / "configs"
ROWS_DIVIDED_BY = 100
"""Of published tables of more than 10,000 rows, for two CPU cores."""
ZIPF_EXPONENT = 1.05
"""Large columns of Criteo's sample fit 1.03 to 1.08 (``exponents.json``)."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Attributes:
    path: of the config that it starts from.
    changes: to it.
    hot_share: how large a part of all rows may be hot.
    """

    path: Path
    changes: tuple[str, ...]
    hot_share: float

    def config(self, *changes: str) -> ExperimentConfig:
        return reading.load(self.path, [*self.changes, *changes])


def _published(name: str, dense_features: int) -> tuple[Path, tuple[str, ...]]:
    """A published model's tables, the large ones smaller, with synthetic data."""
    path = CONFIGS / "experiments" / name / "dlrm.yaml"
    rows = {
        table: -(-each.rows // ROWS_DIVIDED_BY) if each.rows > 10_000 else each.rows
        for table, each in reading.load(path).embedding.tables.items()
        if each.rows
    }
    return path, (
        "data.kind=synthetic",
        f"data.dense_features={dense_features}",
        f"data.zipf_exponent={ZIPF_EXPONENT}",
        "fleet=this-machine",
        "model.bottom=[64,16]",
        "model.top=[64,1]",
        "embedding.optimizer={kind: rowwise_adagrad, learning_rate: 0.1}",
        "dense_optimizer={kind: adam, learning_rate: 2e-3}",
        "data.test_samples=20000",
        "train.batch_size=1024",
        "train.steps=256",
        "train.eval_every=null",
        *(f"embedding.tables.{table}.rows={count}" for table, count in rows.items()),
    )


WORKLOADS = {
    "Criteo's tables": Workload(*_published("criteo_kaggle", 13), 0.2),
    "Avazu's tables": Workload(*_published("avazu", 1), 0.2),
}
"""By name; ``hot_share`` makes about half of the samples all-hot."""


def prepare(workload: Workload, mesh: tuple[int, int], *changes: str) -> Experiment:
    """The workload with hot rows by one setting: a budget of memory, which the planner
    fills by one threshold of frequency over all tables (FAE's)."""
    config = workload.config()
    nodes, gpus = mesh
    planned = experiment.plan_model(config)
    rows_bytes = sum(
        table.rows * hot_row_bytes(config, table) for table in planned.tables
    )
    return experiment.build(
        workload.config(
            f"embedding.hot_budget={int(workload.hot_share * rows_bytes)}",
            f"mesh.nodes={nodes}",
            f"mesh.gpus_per_node={gpus}",
            *changes,
        )
    )
