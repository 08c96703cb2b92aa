"""Small plans, models, data and trainers, for all tests that train."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
import optax
from embark_kernels import SGD, Adagrad, RowOptimizer
from flax import nnx

import embark_jax as ej
from embark_jax.plans.layout import lay_out
from embark_jax.plans.wire import FLOAT32

DENSE = 2
"""Dense features of ``dlrm``."""


def make_plan(features, placed, nodes, gpus, batch, capacity=None) -> ej.Plan:
    """A plan of these placements.

    Args:
      capacity: of the buckets of all storages, or a mapping by storage; None takes one
        that holds any batch.
    """
    if not isinstance(capacity, Mapping):
        shards = max(placement.column_shards for placement in placed)
        ids = batch * sum(feature.hotness * shards for feature in features)
        storages = lay_out(placed, features, nodes * gpus)
        exchanged = [storage.name for storage in storages if not storage.replicated]
        capacity = dict.fromkeys(exchanged, capacity or ids)
    return ej.Plan(tuple(features), tuple(placed), nodes, gpus, batch, capacity)


def dlrm(shapes) -> nnx.Module:
    """The smallest DLRM of embeddings of 4 values."""
    return ej.models.DLRM(shapes, DENSE, (4,), (4, 1), rngs=nnx.Rngs(0))


def dlrm_dcnv2(dense, bottom, top, rank, layers=1) -> Callable[..., nnx.Module]:
    """Makes a DLRM-DCNv2 for the shapes of embeddings."""
    return lambda shapes: ej.models.DLRMDCNv2(
        shapes,
        dense,
        bottom=bottom,
        top=top,
        cross_layers=layers,
        cross_rank=rank,
        compute_dtype="float32",
        rngs=nnx.Rngs(0),
    )


class Sum(nnx.Module):
    """A model without parameters: a logit is the sum of all embeddings."""

    def __call__(self, dense, embeddings):
        return sum(rows.sum(axis=1) for rows in embeddings.values())


COLLECTIONS: dict[tuple[str, ej.Wire], ej.EmbeddingCollection] = {}


def collection_of(plan: ej.Plan, wire: ej.Wire) -> ej.EmbeddingCollection:
    """The same one for the same plan: what makes its initial rows is compiled once."""
    key = plan.to_json(), wire
    if key not in COLLECTIONS:
        COLLECTIONS[key] = ej.EmbeddingCollection(plan, plan.make_mesh(), wire=wire)
    return COLLECTIONS[key]


def make_trainer(
    plan: ej.Plan,
    model: nnx.Module | ej.FunctionModel | Callable[..., nnx.Module] = dlrm,
    optimizer: RowOptimizer | None = None,
    *,
    micro_batches: int = 1,
    wire: ej.Wire = FLOAT32,
    **options,
) -> ej.Trainer:
    """A trainer of a plan on CPU devices.

    Args:
      plan: the plan.
      model: the model, or a function that makes it for the shapes of embeddings.
      optimizer: of rows; None takes Adagrad.
      options: others of ``ej.Trainer``.
    """
    embeddings = collection_of(plan, wire)
    if not isinstance(model, nnx.Module | ej.FunctionModel):
        model = model(embeddings.output_shapes)
    options.setdefault("dense_optimizer", optax.sgd(0.1, momentum=0.9))
    options.setdefault("seed", 1)
    return ej.Trainer(
        model,
        embeddings,
        embedding_optimizer=optimizer or Adagrad(0.1),
        micro_batches=micro_batches,
        **options,
    )


SMALL_TABLES = (
    ej.TableSpec("a", 40, 4, init_scale=1.0),
    ej.TableSpec("b", 9, 4, init_scale=1.0),
)
SMALL_BATCH = 16
SMALL_FEATURES = (ej.FeatureSpec("a"), ej.FeatureSpec("b"))
SMALL_DATA = ej.SyntheticClicks(
    SMALL_TABLES, SMALL_FEATURES, dense_features=1, train_samples=160, test_samples=16
)


def small_trainer(model, devices: int = 1, micro_batches: int = 1, **options):
    """Of ``SMALL_TABLES``; with plain SGD, table a in row shards where it can be."""
    plan = ej.plan(
        SMALL_TABLES,
        SMALL_FEATURES,
        ej.fleets.this_machine(1, devices),
        SMALL_BATCH,
        forced={"a": ej.ForcedPlacement("rb" if devices > 1 else "dp")},
    )
    options = {"optimizer": SGD(0.5), "dense_optimizer": optax.sgd(0.1), **options}
    return make_trainer(plan, model, micro_batches=micro_batches, **options)


def losses(results) -> list[tuple[int, float]]:
    """``(step, loss)`` of each step."""
    return [(result.step, result.loss) for result in results]


def snapshot(trainer: ej.Trainer):
    """All of the state, copied to the host."""
    return jax.tree.map(np.array, trainer.state)


def assert_equal_states(state, expected) -> None:
    """Bit by bit."""
    jax.tree.map(np.testing.assert_array_equal, state, expected)


def tables_of(collection: ej.EmbeddingCollection, arrays) -> dict[str, np.ndarray]:
    """Logical rows of every table out of storage-like arrays."""
    return {
        table.name: ej.export_table(collection, arrays, table.name)
        for table in collection.plan.tables
    }


def tables_and_states(trainer: ej.Trainer) -> dict[tuple[str, str], np.ndarray]:
    """Logical rows by ``(table, "weights" or the name of an optimizer's state)``."""
    state = trainer.whole_state()
    arrays = {"weights": dict(state.storages)}
    for storage, states in state.embedding_state.items():
        for name, array in states.items():
            arrays.setdefault(name, {})[storage] = array
    return {
        (table, kind): rows
        for kind, storages in arrays.items()
        for table, rows in tables_of(trainer.embeddings, storages).items()
    }


def assert_same_tables(
    tables: Mapping[tuple[str, str], np.ndarray],
    expected: Mapping[tuple[str, str], np.ndarray],
) -> None:
    """Bit by bit, of the same types."""
    assert tables.keys() == expected.keys()
    for name, rows in expected.items():
        assert tables[name].dtype == rows.dtype
        np.testing.assert_array_equal(tables[name], rows, err_msg=str(name))
