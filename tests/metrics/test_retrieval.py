"""Two towers: their loss against NumPy, and search on a mesh against sorting."""

import functools
import math
from types import MappingProxyType

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import embark_jax as ej
from embark_jax.config import negatives_of
from embark_jax.config.models import section_of
from embark_jax.data import WithUniformNegatives
from embark_jax.data.layout import BatchColumns
from embark_jax.metrics import retrieval
from embark_jax.models import Masked
from tests import runs
from tests.models.sequence_oracle import last_event
from tests.models.slopes import assert_slopes
from tests.processes import train_in_two
from tests.thorough import thorough

USERS, ITEMS, BATCH, DIM = 50, 30, 16, 4
TABLES = (ej.TableSpec("user", USERS, DIM), ej.TableSpec("item", ITEMS, DIM))


def mesh(shape=(2, 4)):
    return jax.make_mesh(shape, ("node", "gpu"))


@pytest.mark.parametrize("at_once", [2, 8192])
@pytest.mark.parametrize("items", [40, 43])
def test_search_equals_sorting(items, at_once, monkeypatch):
    monkeypatch.setattr(retrieval, "ITEMS_AT_ONCE", at_once)
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


def test_memory_of_a_search_does_not_grow_with_the_items(monkeypatch):
    monkeypatch.setattr(retrieval, "ITEMS_AT_ONCE", 100)

    def temporary_bytes(items):
        index = ej.ItemIndex(np.arange(items), np.ones((items, 4)), mesh((1, 1)))
        search = retrieval._search(index._mesh, 10, index._block, items)
        users, seen = np.ones((8, 4), np.float32), np.ones((8, 3), np.int32)
        compiled = search.lower(users, seen, index._vectors).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(10_000) < 2 * temporary_bytes(1_000)


@pytest.mark.parametrize("shape", [(1, 1), (2, 4)])
@pytest.mark.parametrize("items", [3, 43])
def test_ranks_equal_counting(shape, items, monkeypatch):
    monkeypatch.setattr(retrieval, "ITEMS_AT_ONCE", 4)
    monkeypatch.setattr(retrieval, "USERS_AT_ONCE", 16)
    rng = np.random.default_rng(1)
    users, vectors = (rng.integers(-2, 3, (n, 2)) for n in (40, items))  # many ties
    ids = rng.permutation(1000)[:items]
    targets = rng.choice(ids, 40)
    seen = np.where(rng.random((40, 5)) < 0.3, -1, rng.choice(ids, (40, 5)))
    seen[0, 0], seen[1, 0] = targets[0], 5000  # a repeat; one of no vector
    index = ej.ItemIndex(ids, vectors, mesh(shape))
    for known in (seen, None):
        before, equal = [], []
        known_to = np.full((40, 0), -1) if known is None else known
        for user, target, left_out in zip(users, targets, seen, strict=True):
            scores = dict(zip(ids.tolist(), (vectors @ user).tolist(), strict=True))
            own = scores.pop(target)
            if known is not None:
                scores = {i: x for i, x in scores.items() if i not in left_out}
            before.append(sum(x > own for x in scores.values()))
            equal.append(sum(x == own for x in scores.values()))
        is_seen = (known_to == targets[:, None]).any(axis=1)
        before = np.where(is_seen, retrieval.NEVER, before)
        equal = np.where(is_seen, 0, equal)
        found = index.ranks(users, targets, known)
        np.testing.assert_array_equal(found.before, before)
        np.testing.assert_array_equal(found.equal, equal)
    with pytest.raises(ValueError, match="item 5000 is not in the index"):
        index.ranks(users[:1], [5000])


def test_an_index_refuses_what_has_no_order():
    """NaN came first for every user, and an item that is there twice was found
    twice."""
    users, vectors = np.ones((1, 2)), np.ones((3, 2))
    with pytest.raises(ValueError, match="id 7 is there twice, must be that of one"):
        ej.ItemIndex(np.array([7, 8, 7]), vectors, mesh())
    index = ej.ItemIndex(np.arange(3), vectors, mesh())
    vectors[1, 0] = np.nan
    with pytest.raises(ValueError, match="vector of item 1 is not finite"):
        ej.ItemIndex(np.arange(3), vectors, mesh())
    users = np.full((1, 2), np.inf)
    for call in (lambda: index.search(users, 1), lambda: index.ranks(users, [1])):
        with pytest.raises(ValueError, match="vector of user 0 is not finite"):
            call()


def test_a_search_leaves_out_what_each_user_has_seen():
    """Oracle: sorting without them. Where too few are left, -1 fills the rest."""
    rng = np.random.default_rng(2)
    users, vectors = (rng.normal(size=(n, 3)).astype(np.float32) for n in (5, 20))
    ids = rng.permutation(100)[:20]
    seen = np.where(rng.random((5, 25)) < 0.5, rng.choice(ids, (5, 25)), -1)
    seen[0, :20] = ids  # all of them
    found, products = ej.ItemIndex(ids, vectors, mesh()).search(users, 20, seen)
    for user, of_user, scores, known in zip(users, found, products, seen, strict=True):
        left = [i for i in np.argsort(-vectors @ user) if ids[i] not in known]
        assert of_user.tolist() == [*ids[left], *[-1] * (20 - len(left))]
        np.testing.assert_allclose(scores[: len(left)], vectors[left] @ user, rtol=1e-5)
        assert (scores[len(left) :] == -np.inf).all()


def tower(**options) -> ej.models.TwoTower:
    shapes = {"user": (DIM,), "item": (DIM,)}
    if count := options.get("uniform_negatives"):
        shapes["uniform_negatives"] = (count, DIM)
    return ej.models.TwoTower(
        shapes, 0, items=("item",), tower=(6, 3), rngs=nnx.Rngs(0), **options
    )


@pytest.mark.parametrize("uniform", thorough([0, 2], [2]))
def test_the_loss_equals_its_formula(uniform):
    rng, kinds = np.random.default_rng(0), 9
    rows = rng.normal(size=(kinds, DIM)).astype(np.float32)
    ids = rng.integers(0, kinds, BATCH).astype(np.int32)  # some of them twice
    drawn = rng.integers(0, kinds, (BATCH, uniform)).astype(np.int32)
    labels = rng.integers(0, 2, BATCH).astype(np.float32)
    embeddings = {"user": rng.normal(size=(BATCH, DIM)), "item": rows[ids]}
    columns = {"user": ids[:, None], "item": ids[:, None]}
    if uniform:
        embeddings["uniform_negatives"] = rows[drawn]
        columns["uniform_negatives"] = drawn
    model = tower(
        temperature=0.5, uniform_negatives=uniform, in_batch=True, catalog=ITEMS
    )
    dense = jnp.zeros((BATCH, 0))
    on_devices = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), embeddings)
    batch = BatchColumns(
        dense, jax.tree.map(jnp.asarray, columns), {}, jnp.asarray(labels)
    )
    users = np.asarray(model.users(dense, on_devices), np.float64)
    items = model.items(jnp.zeros((kinds, 0)), {"item": jnp.asarray(rows)})
    items = np.asarray(items, np.float64)
    np.testing.assert_allclose(np.linalg.norm(users, axis=1), 1, rtol=1e-5)
    loss = nnx.jit(ej.models.TwoTower.loss)
    for seen in (1, 2):  # batches: counts go up alike
        losses, logits = loss(model, on_devices, batch)
        count = np.maximum(seen * np.bincount(ids, minlength=kinds), 1)
        expected_number = count / seen + uniform * BATCH / ITEMS
        for i in range(BATCH):
            cosines = items @ users[i] / 0.5
            scores = cosines - np.log(expected_number)
            negatives = np.append(ids, drawn)
            sampled = np.exp(scores[negatives[negatives != ids[i]]]).sum()
            expected = np.log(np.exp(scores[ids[i]]) + sampled) - scores[ids[i]]
            assert losses[i] == pytest.approx(labels[i] * expected, rel=1e-4, abs=1e-5)
            assert logits[i] == pytest.approx(cosines[ids[i]], rel=1e-4, abs=1e-5)


def test_towers_are_built_with_negatives_of_their_item():
    config = section_of("two_tower")(items=("item",), uniform_negatives=2)
    assert negatives_of(config) == ("item", 2)
    shapes = {"user": (DIM,), "item": (DIM,), "uniform_negatives": (2, DIM)}
    model = ej.models.build(config, shapes, 0, nnx.Rngs(0), {"item": ITEMS})
    assert model.catalog == ITEMS
    shapes["shop"] = (DIM,)
    config = section_of("two_tower")(items=("item", "shop"), uniform_negatives=2)
    with pytest.raises(ValueError, match="vector is made of item, shop, of which"):
        ej.models.build(config, shapes, 0, nnx.Rngs(0))
    del shapes["uniform_negatives"]
    with pytest.raises(ValueError, match="is 2, but the feature of that name has 0"):
        ej.models.build(config, shapes, 0, nnx.Rngs(0))


HISTORY = 5
LATEST = {"past": "item"}
SEQUENCES = {"item": (DIM,), "past": (HISTORY, DIM), "uniform_negatives": (2, DIM)}


def next_item(encoder, **options) -> ej.models.NextItem:
    options = {"every_position": True, "uniform_negatives": 2, **options}
    return ej.models.NextItem(
        SEQUENCES, 0, LATEST, encoder, 1, catalog=ITEMS, rngs=nnx.Rngs(0), **options
    )


def histories(rng, samples: int) -> dict[str, np.ndarray]:
    """Ids; padding lies before a history, behind it or in the middle."""
    past = rng.integers(0, ITEMS, (samples, HISTORY)).astype(np.int32)
    past[rng.random((samples, HISTORY)) < 0.4] = -1
    past[0] = -1
    return {
        "past": past,
        "item": rng.integers(0, ITEMS, (samples, 1)).astype(np.int32),
        "uniform_negatives": rng.integers(0, ITEMS, (samples, 2)).astype(np.int32),
    }


def keys_of(ids):
    """64-bit keys, some of them negative, that differ in their upper halves alone."""
    with jax.enable_x64(True):
        return jnp.asarray(np.where(ids < 0, -1, (ids.astype(np.int64) - 20) * 2**32))


def every_position_losses(arrays, ids, labels, encoder, in_batch=True, temperature=0.5):
    """The losses of ``next_item``'s models after the first batch, event by event."""
    params, rows = arrays
    samples, losses = len(labels), np.zeros(len(labels))
    items = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    count = np.maximum(np.bincount(ids["item"][:, 0], minlength=ITEMS), 1)
    expected_number = in_batch * count + 2 * samples / ITEMS
    negatives = ids["uniform_negatives"].reshape(-1)
    if in_batch:
        negatives = np.append(negatives, ids["item"])
    for i, past in enumerate(ids["past"]):
        events = [*past[past >= 0], ids["item"][i, 0]]
        for t, target in enumerate(events):
            seen = np.concatenate([params["start"][None], rows[events[:t]]])
            user = last_event(params["encoder"], encoder, seen, heads=1)
            cosines = items @ user / np.linalg.norm(user)
            logits = cosines / temperature - np.log(expected_number)
            sampled = np.exp(logits[negatives[negatives != target]]).sum()
            loss = np.log(np.exp(logits[target]) + sampled) - logits[target]
            losses[i] += loss * (labels[i] if t == len(events) - 1 else 1)
    return losses * samples / (np.sum(ids["past"] >= 0) + samples)


def in_float64(params, rows):
    arrays = nnx.to_pure_dict(params), rows
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arrays)


@pytest.mark.parametrize(
    ("encoder", "in_batch", "on_devices"),
    [
        ("sasrec", True, jnp.asarray),
        ("hstu", False, jnp.asarray),
        pytest.param("sasrec", True, keys_of, marks=pytest.mark.slow),
    ],
)
def test_every_event_is_predicted_by_those_before(
    encoder, in_batch, on_devices, monkeypatch
):
    monkeypatch.setattr("embark_jax.models.retrieval.POSITIONS_AT_ONCE", 4)
    rng, samples = np.random.default_rng(3), 6
    ids, rows = histories(rng, samples), rng.normal(size=(ITEMS, DIM))
    model = next_item(encoder, temperature=0.5, in_batch=in_batch)
    labels = np.array([1, 1, 0, 1, 1, 1], np.float32)
    dense = jnp.zeros((samples, 0))
    batch = BatchColumns(dense, jax.tree.map(on_devices, ids), {}, jnp.asarray(labels))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(params, rows):
        embeddings = {
            name: jnp.where(x[..., None] < 0, 0, rows[x]) for name, x in ids.items()
        }
        embeddings["item"] = embeddings["item"][:, 0]
        embeddings["past"] = Masked(embeddings["past"], ids["past"] >= 0)
        model = nnx.merge(graph, params, rest, copy=True)
        losses, _ = model.loss(embeddings, batch)
        return losses.sum(), losses

    (_, losses), gradients = loss(params, jnp.asarray(rows, jnp.float32))

    def formula(arrays):
        return every_position_losses(arrays, ids, labels, encoder, in_batch)

    arrays = in_float64(params, rows)
    np.testing.assert_allclose(losses, formula(arrays), rtol=1e-4)
    assert_slopes(lambda a: formula(a).sum(), arrays, in_float64(*gradients))


def shapes_outside_loops(jaxpr):
    """Shapes of all results of a traced program, but for those of a loop's turns."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        if equation.primitive.name not in ("scan", "while"):
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from shapes_outside_loops(inner)


def test_scores_are_in_memory_for_one_turn_alone():
    """Neither those of all positions, nor, beside the turns, a constant as large."""
    samples, length, dim = 512, 63, 4
    shapes = {"item": (dim,), "past": (length, dim)}
    model = ej.models.NextItem(
        shapes, 0, LATEST, "sasrec", 1, every_position=True, rngs=nnx.Rngs(0)
    )
    graph, state = nnx.split(model)

    def loss(embeddings, ids, state):
        batch = BatchColumns(jnp.zeros((samples, 0)), ids, {}, jnp.ones(samples))
        losses, _ = nnx.merge(graph, state, copy=True).loss(embeddings, batch)
        return losses.sum()

    embeddings = {
        name: jax.ShapeDtypeStruct((samples, *shape), jnp.float32)
        for name, shape in shapes.items()
    }
    ids = {
        name: jax.ShapeDtypeStruct((samples, n), jnp.int32)
        for name, n in (("item", 1), ("past", length))
    }
    gradient = jax.jit(jax.grad(loss))
    traced = gradient.trace(embeddings, ids, state).jaxpr
    shapes = [s for s in shapes_outside_loops(traced.jaxpr) if s[-1:] == (samples,)]
    assert max(map(math.prod, shapes)) == samples  # one number for each negative
    compiled = gradient.lower(embeddings, ids, state).compile()
    memory = compiled.memory_analysis()
    assert memory
    assert memory.temp_size_in_bytes < 4 * samples * (length + 1) * samples


class Histories:
    features = (
        ej.FeatureSpec("item"),
        ej.FeatureSpec("past", "item", HISTORY, "none"),
    )
    dense_features = 0
    table_rows = MappingProxyType({"item": ITEMS})

    def train_batch(self, step, batch_size):
        ids = histories(np.random.default_rng(step), batch_size)
        del ids["uniform_negatives"]
        labels = np.ones(batch_size, np.float32)
        return ej.Batch(np.zeros((batch_size, 0), np.float32), ids, labels)


def test_negatives_are_a_function_of_the_sample():
    data = WithUniformNegatives(Histories(), "item", 2, 1, range(ITEMS))
    whole = data.train_batch(3, 8).ids["uniform_negatives"]
    shares = [data.train_batch(6 + p, 4).ids["uniform_negatives"] for p in (0, 1)]
    np.testing.assert_array_equal(whole, np.concatenate(shares))
    other = WithUniformNegatives(Histories(), "item", 2, 2, range(ITEMS))
    assert (other.train_batch(3, 8).ids["uniform_negatives"] != whole).any()
    drawn = data.train_batch(0, 30_000).ids["uniform_negatives"]
    numbers = np.bincount(drawn.reshape(-1), minlength=ITEMS)
    assert len(numbers) == ITEMS
    assert abs(numbers - 2000).max() < 5 * 2000**0.5  # five standard deviations
    some = WithUniformNegatives(Histories(), "item", 2, 1, range(2, ITEMS))
    drawn = some.train_batch(0, 1000).ids["uniform_negatives"]
    assert sorted(set(drawn.reshape(-1))) == list(range(2, ITEMS))
    assert (
        data.without(Histories().train_batch(0, 4)).ids[data.features[-1].name] < 0
    ).all()


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "encoder"), [("ub", "hstu"), ("dp", "sasrec")])
def test_sampled_softmax_of_a_sharded_table_equals_that_of_one_device(cluster, encoder):
    """Both are those of the formula, by which a step of SGD goes down."""
    data = WithUniformNegatives(Histories(), "item", 2, 1, range(ITEMS))
    batch = data.train_batch(0, BATCH)

    def formula(arrays):
        losses = every_position_losses(arrays, batch.ids, batch.labels, encoder)
        return losses.mean()

    def trained(nodes, gpus):
        machines = ej.fleets.load("this-machine", nodes, gpus)
        forced = {"item": ej.ForcedPlacement(cluster)}
        planned = ej.plan(TABLES[1:], data.features, machines, BATCH, forced=forced)
        trainer = ej.Trainer(
            next_item(encoder, temperature=0.5),
            ej.EmbeddingCollection(planned, planned.make_mesh()),
            dense_optimizer=optax.sgd(1.0),
            embedding_optimizer=ej.SGD(1.0),
        )

        def arrays():
            params = nnx.state(trainer.model, nnx.Param)
            return in_float64(params, trainer.table("item").rows)

        before, losses = arrays(), []
        for steps in (1, 3):
            trainer.fit(
                data, steps, callback=lambda r: losses.append(r.loss), progress=False
            )
            if steps == 1:
                assert losses == [pytest.approx(formula(before), rel=1e-5)]
                gradients = jax.tree.map(np.subtract, before, arrays())
                assert_slopes(formula, before, gradients)
        return np.array(losses), trainer.table("item").rows

    for one, other in zip(trained(1, 1), trained(2, 4), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


CONFIG = """\
data: {kind: synthetic, dense_features: 0, train_samples: 512, test_samples: 100}
model:
  kind: next_item
  history: {past: item}
  layers: 1
  every_position: true
  uniform_negatives: 2
embedding:
  dim: 4
  tables: {item: {rows: 60}}
  features: {item: {}, past: {table: item, hotness: 3, pooling: none}}
train:
  batch_size: 64
  steps: 4
  retrieval: {at: [10, 60], exclude: past}
"""


@pytest.mark.slow
def test_two_processes_measure_hit_rates_as_one(tmp_path):
    """Each holds some columns of all items but the hot ones."""
    table = "{rows: 60, cluster: ub, row_shards: 1, column_shards: 2, hot_rows: 7}"
    config = runs.write_config(tmp_path, CONFIG)
    mesh = "mesh={nodes: 2, gpus_per_node: 1}"
    args = config, mesh, f"embedding.tables.item={table}", "train.log_every=1"
    runs.done("train", *args, "--workdir", tmp_path / "one")
    train_in_two(*args, "--workdir", tmp_path / "two")
    one, two = (runs.final(tmp_path / name) for name in ("one", "two"))
    names = [name for name in one if name.startswith("test_")]
    assert {"test_hr@10", "test_ndcg@60", "test_repeats"} <= set(names)
    assert one["test_hr@60"] == pytest.approx(1 - one["test_repeats"])
    for name in names:
        assert two[name] == pytest.approx(one[name], rel=1e-4), name
    losses = (runs.losses(tmp_path / name) for name in ("one", "two"))
    assert next(losses) == pytest.approx(next(losses), rel=1e-4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.retrieval.exclude=seen", "train.retrieval.exclude: "),
        ("model={kind: din, history: {past: item}}", "train.retrieval: must be left"),
        ("embedding.tables.item.max_slots=64", "'item' is dynamic, must be fixed"),
    ],
)
@pytest.mark.slow
def test_what_hit_rates_and_negatives_need(tmp_path, override, message):
    config = runs.write_config(tmp_path, CONFIG)
    outcome = runs.embark("train", config, "--workdir", tmp_path / "run", override)
    assert outcome.code
    assert message in outcome.err
