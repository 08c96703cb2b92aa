"""One small run for every kind of table: its plan, its batches, and what it trains."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import embark_jax as ej
from embark_jax.plans.capacities import events_of
from embark_jax.plans.placement import Placement
from embark_jax.plans.wire import FLOAT32
from tests.builders import make_plan, make_trainer

BATCH, DIM, SCALE, ROWS, OTHERS, HOT = 16, 4, 0.5, 240, 12, 9
MESH = (2, 2)
ADAGRAD = ej.Adagrad(0.5)
POOLED = (
    ej.FeatureSpec("x", hotness=3),
    ej.FeatureSpec("mean", "x", hotness=2, pooling="mean", weighted=True),
    ej.FeatureSpec("other"),
)
SEQUENCES = (dataclasses.replace(POOLED[0], pooling="none"), *POOLED[1:])


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of table.

    Attributes:
      table: the table "x".
      placed: cluster, column shards and hot rows of it.
      resident: the kind that trains to the same bits with all rows on devices.
      features: of the table, and of one beside it.
    """

    table: ej.TableSpec
    placed: tuple[str, int, int] = ("ub", 1, 0)
    resident: str = ""
    features: tuple[ej.FeatureSpec, ...] = POOLED

    def placement(self, devices: int) -> Placement:
        cluster, column_shards, hot_rows = self.placed
        if cluster == "dp":
            return Placement(self.table, "dp")
        return Placement(
            self.table,
            cluster,
            devices // column_shards,
            column_shards,
            tuple(range(devices)),
            hot_rows=hot_rows,
        )


def fixed(**options: Any) -> ej.TableSpec:
    return ej.TableSpec("x", ROWS, DIM, SCALE, **options)


def dynamic(**options: Any) -> ej.TableSpec:
    """Begins with few slots; its keys are the numbers of a fixed table's rows."""
    return ej.TableSpec.dynamic("x", DIM, init_scale=SCALE, **options)


KINDS = {
    "dp": Kind(fixed(), ("dp", 1, 0)),
    "rb": Kind(fixed(), ("rb", 2, 0)),
    "ub": Kind(fixed()),
    "hot": Kind(fixed(), ("rb", 1, HOT)),
    "16 bits": Kind(fixed(dtype="bfloat16"), ("ub", 2, 0)),
    "sequence": Kind(fixed(), features=SEQUENCES),
    "on host": Kind(fixed(tier="host", slots=80), resident="ub"),
    "on disk": Kind(fixed(tier="disk", slots=90, evict="lfu"), resident="ub"),
    "dynamic": Kind(dynamic(slots=50, max_slots=90), resident="ub"),
    "hot, 16 bits": Kind(fixed(dtype="bfloat16"), ("rb", 2, HOT)),
    "hot, 16 bits, on host": Kind(
        fixed(tier="host", slots=80, dtype="bfloat16"),
        ("rb", 2, HOT),
        resident="hot, 16 bits",
    ),
    "sequence on disk": Kind(
        fixed(tier="disk", slots=90), resident="sequence", features=SEQUENCES
    ),
    "dynamic sequence": Kind(
        dynamic(slots=50, max_slots=90), resident="sequence", features=SEQUENCES
    ),
    "dynamic in RB": Kind(
        dynamic(slots=50, max_slots=90, evict="lfu", evicted="disk"),
        ("rb", 2, 0),
        resident="rb",
    ),
}


def weights_of(features: Sequence[ej.FeatureSpec]) -> dict[str, np.ndarray]:
    """What the logits take of each embedding, ``[length, DIM]``."""
    return {
        feature.name: np.linspace(0.5, 1 + i, shape * DIM, dtype=np.float32).reshape(
            shape, DIM
        )
        for i, feature in enumerate(features)
        for shape in [feature.hotness if feature.sequence else 1]
    }


def logits_of(params, dense, embeddings):
    """The sum of all embeddings times their weights."""
    terms = [
        (embeddings[name].reshape(len(dense), -1, DIM) * weight[None]).sum((1, 2))
        for name, weight in params.items()
    ]
    return sum(terms) + 1e30 * dense[:, 0]


def trainer_of(
    kind: Kind,
    mesh: tuple[int, int] = MESH,
    capacity: int | None = None,
    exchange: str = "flat",
    wire: ej.Wire = FLOAT32,
    optimizer: ej.RowOptimizer = ADAGRAD,
    dense_rate: float = 0.1,
    **options: Any,
) -> ej.Trainer:
    """A trainer of one kind of table, beside a small one on the first device."""
    placed = kind.placement(mesh[0] * mesh[1])
    if placed.cluster != "dp":
        placed = dataclasses.replace(placed, exchange=exchange)
    other = Placement(ej.TableSpec("other", OTHERS, DIM, SCALE), "ub", 1, 1, (0,))
    weights = weights_of(kind.features)
    model = ej.FunctionModel(
        {name: jnp.asarray(each) for name, each in weights.items()}, logits_of
    )
    plan = make_plan(kind.features, (placed, other), *mesh, BATCH, capacity)
    if capacity:
        sequences = (feature.name for feature in kind.features if feature.sequence)
        plan.capacities.update({events_of(name): 3 for name in sequences})
    return make_trainer(
        plan,
        model,
        optimizer,
        dense_optimizer=optax.sgd(dense_rate),
        wire=wire,
        **options,
    )


def batches(first: int, last: int, bad: int | None = None) -> Iterator[ej.Batch]:
    """Ids of other rows in each step, some of which come back; the loss of the batch
    ``bad`` is no number, and its rows are other ones."""
    for step in range(first, last):
        rng = np.random.default_rng(step)
        ids = {}
        for feature in POOLED[:2]:
            drawn = (step % 5 * 37 + rng.integers(0, 40, (BATCH, feature.hotness))) % (
                ROWS - 40
            )
            drawn = drawn + 40 if step == bad else drawn
            drawn[rng.random(drawn.shape) < 0.2] = -1
            ids[feature.name] = drawn
        ids["other"] = rng.integers(0, OTHERS, (BATCH, 1))
        yield ej.Batch(
            np.full((BATCH, 1), 1e30 if step == bad else 0.0, np.float32),
            ids,
            rng.integers(0, 2, BATCH).astype(np.float32),
            {"mean": rng.uniform(0.1, 1, (BATCH, 2)).astype(np.float32)},
        )


def rows_of(trainer: ej.Trainer) -> np.ndarray:
    """All rows of the table that were looked up or may have been."""
    table = trainer.table("x")
    rows = np.full((ROWS, DIM), np.nan, np.float32)
    rows[table.keys] = table.rows
    return rows
