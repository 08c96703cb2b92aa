"""Two towers: their loss against NumPy, and search on a mesh against sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax.embedding.device_batch import Columns
from embark_jax.metrics.retrieval import items_of

USERS, ITEMS, BATCH, DIM = 50, 30, 16, 4
TABLES = (ej.TableSpec("user", USERS, DIM), ej.TableSpec("item", ITEMS, DIM))
FEATURES = (ej.FeatureSpec("user"), ej.FeatureSpec("item"))


def mesh(shape=(2, 4)):
    return jax.make_mesh(shape, ("node", "gpu"))


@pytest.mark.parametrize("items", [40, 43])
def test_search_equals_sorting(items):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(items, 5)).astype(np.float32)
    vectors[17] = vectors[3]  # equal ones: the first comes first
    users = rng.normal(size=(6, 5)).astype(np.float32)
    ids = rng.permutation(1000)[:items]
    scores = users @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")
    index = ej.ItemIndex(ids, vectors, mesh())
    for k in (1, 7, items):  # the last is more than a device has
        found, products = index.search(users, k)
        np.testing.assert_array_equal(found, ids[order[:, :k]])
        expected = np.take_along_axis(scores, order[:, :k], axis=1)
        np.testing.assert_allclose(products, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="k is 44, must be from 1 to the"):
        index.search(users, 44)


def tower(**options) -> ej.models.TwoTower:
    shapes = {"user": (DIM,), "item": (DIM,)}
    return ej.models.TwoTower(
        shapes, 0, items=("item",), tower=(6, 3), rngs=nnx.Rngs(0), **options
    )


def test_the_loss_equals_its_formula():
    model, rng = tower(temperature=0.5), np.random.default_rng(0)
    embeddings = {
        name: rng.normal(size=(BATCH, DIM)).astype(np.float32)
        for name in ("user", "item")
    }
    ids = rng.integers(0, 9, BATCH).astype(np.int32)  # some of them twice
    for i, j in enumerate(ids):
        embeddings["item"][i] = embeddings["item"][np.flatnonzero(ids == j)[0]]
    labels = rng.integers(0, 2, BATCH).astype(np.float32)
    batch = Columns(
        jnp.zeros((BATCH, 0)),
        {"item": jnp.asarray(ids)[:, None], "user": jnp.asarray(ids)[:, None]},
        {},
        jnp.asarray(labels),
    )
    dense = jnp.zeros((BATCH, 0))
    on_devices = jax.tree.map(jnp.asarray, embeddings)
    users = np.asarray(model.users(dense, on_devices), np.float64)
    items = np.asarray(model.items(dense, on_devices), np.float64)
    np.testing.assert_allclose(np.linalg.norm(users, axis=1), 1, rtol=1e-5)
    for seen in (1, 2):  # batches: counts go up alike
        losses, logits = model.loss(on_devices, batch)
        for i in range(BATCH):
            scores = []
            for j in range(BATCH):
                if i != j and ids[i] == ids[j]:
                    continue  # the same item is no negative
                frequency = seen * np.sum(ids == ids[j])
                scores.append(users[i] @ items[j] / 0.5 - np.log(frequency))
            own = users[i] @ items[i] / 0.5
            corrected = own - np.log(seen * np.sum(ids == ids[i]))
            expected = np.log(np.exp(scores).sum()) - corrected
            assert losses[i] == pytest.approx(labels[i] * expected, rel=1e-4, abs=1e-5)
            assert logits[i] == pytest.approx(own, rel=1e-4, abs=1e-5)


class Likes:
    """User u likes item u % ITEMS alone."""

    features = FEATURES
    dense_features = 0

    def train_batch(self, step, batch_size):
        rng = np.random.default_rng(step)
        user = rng.integers(0, USERS, batch_size).astype(np.int32)[:, None]
        ids = {"user": user, "item": (user % ITEMS).astype(np.int32)}
        dense = np.zeros((batch_size, 0), np.float32)
        return ej.Batch(dense, ids, np.ones(batch_size, np.float32))


@pytest.mark.slow
def test_logits_vectors_and_search_of_a_trainer_agree():
    """On a 2 × 4 mesh, with a sharded item table."""
    machines = ej.fleets.load("this-machine", 2, 4)
    forced = {"item": ej.ForcedPlacement("ub")}
    planned = ej.plan(TABLES, FEATURES, machines, BATCH, forced=forced)
    trainer = ej.Trainer(
        tower(temperature=0.2),
        ej.EmbeddingCollection(planned, planned.make_mesh()),
        dense_optimizer=optax.sgd(0.3),
        embedding_optimizer=ej.SGD(3.0),
    )
    data = Likes()
    trainer.fit(data, 5, progress=False)
    catalog = items_of(
        (data.train_batch(i, BATCH) for i in range(30)), "item", ["item"]
    )
    vectors, ids = [], []
    for batch, found in trainer.predict(catalog, method="items"):
        vectors.append(np.asarray(found))
        ids.append(batch.ids["item"][:, 0])
    ids, vectors = np.concatenate(ids), np.concatenate(vectors)
    assert sorted(ids) == sorted(set(ids))
    batch = data.train_batch(1000, BATCH)
    ((_, users),) = trainer.predict([batch], method="users")
    ((_, logits),) = trainer.predict([batch])
    users = np.asarray(users)
    _, products = ej.ItemIndex(ids, vectors, planned.make_mesh()).search(users, 3)
    best = -np.sort(-users @ vectors.T, axis=1)[:, :3]
    np.testing.assert_allclose(products, best, rtol=1e-5, atol=1e-6)
    own = vectors[[list(ids).index(item) for item in batch.ids["item"][:, 0]]]
    cosines = np.sum(users * own, axis=1)
    np.testing.assert_allclose(logits, cosines / 0.2, rtol=1e-4, atol=1e-5)
