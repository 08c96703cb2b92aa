"""What is trained in this experiment, and which of its rows are hot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from embark_jax.config import ExperimentConfig, reading
from embark_jax.data import Dataset, bag_counts
from embark_jax.run import experiment
from embark_jax.run.accesses import sample_accesses
from embark_jax.run.dataset import read_dataset
from embark_jax.run.experiment import Experiment

CONFIGS = Path(__file__).parents[2] / "configs"
ROWS_DIVIDED_BY = 100
"""Of published tables of more than 10,000 rows, for two CPU cores."""
ZIPF_EXPONENT = 1.05
"""Large columns of Criteo's sample fit 1.03 to 1.08 (``exponents.json``)."""
COUNTED_SAMPLES = 80_000


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
    "MovieLens-100k": Workload(CONFIGS / "movielens_100k.yaml", (), 0.5),
    "Criteo's tables": Workload(*_published("criteo_kaggle", 13), 0.2),
    "Avazu's tables": Workload(*_published("avazu", 1), 0.2),
}
"""By name; ``hot_share`` makes about half of the samples all-hot."""


def count(dataset: Dataset, samples: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each table the rows that the first samples look up, and how often."""
    batches = (
        dataset.train_batch(step, 1000)
        for step in range(min(samples, dataset.train_samples) // 1000)
    )
    halves = bag_counts.count_halves(batches, dataset.features)
    return {
        table: bag_counts.merge(
            half[feature.name].counts()
            for half in halves
            for feature in dataset.features
            if feature.table == table
        )
        for table in dataset.table_rows
    }


def hottest(
    counts: Mapping[str, tuple[np.ndarray, np.ndarray]], budget: int
) -> dict[str, int]:
    """How many of each table's rows are among the ``budget`` hottest of all, at least
    one: the rule of FAE, for rows of one width."""
    sizes = [len(ids) for ids, _ in counts.values()]
    of_table = np.repeat(np.arange(len(counts)), sizes)
    falling = np.concatenate([-np.sort(-each) for _, each in counts.values()])
    rank = np.concatenate([np.arange(size) for size in sizes])  # ties go round
    hot = of_table[np.lexsort((rank, -falling))[:budget]]
    return dict(
        zip(counts, np.maximum(1, np.bincount(hot, minlength=len(counts))), strict=True)
    )


def prepare(workload: Workload, mesh: tuple[int, int], *changes: str) -> Experiment:
    """The workload with its hot rows: tables with cold rows in UB, others in DP. The
    plan is the same whatever the changes are."""
    config = workload.config()
    dataset = read_dataset(config).dataset
    budget = int(workload.hot_share * sum(dataset.table_rows.values()))
    hot_rows = hottest(count(dataset, COUNTED_SAMPLES), budget)
    placed = [
        f"embedding.tables.{table}.cluster=dp"
        if hot_rows[table] >= rows
        else f"embedding.tables.{table}.cluster=ub "
        f"embedding.tables.{table}.hot_rows={hot_rows[table]}"
        for table, rows in dataset.table_rows.items()
    ]
    nodes, gpus = mesh
    config = workload.config(
        f"mesh.nodes={nodes}",
        f"mesh.gpus_per_node={gpus}",
        *" ".join(placed).split(),
        *changes,
    )
    statistics = sample_accesses(workload.config(), COUNTED_SAMPLES)
    return experiment.build(config, statistics=statistics)
