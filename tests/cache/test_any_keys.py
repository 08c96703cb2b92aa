"""Any 64 bits are a key: nothing is lost, nothing is zero."""

import functools
from collections import Counter

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

import embark_jax as ej
from embark_jax.embedding.keys import hash_words, number_keys, row_shard_of, words_of
from embark_jax.plans.collectives import storage_collectives
from embark_jax.plans.storage import Placement
from embark_jax.plans.wire import Wire
from tests.builders import make_plan, make_trainer
from tests.cache.initial_row import DIM, SCALE, initial_row
from tests.collectives import counted

BATCH, RATE, HOTNESS, SLOTS = 16, 0.5, 2, 128
EXTREME = [0, 1, -2, 2**63 - 1, -(2**63), 2**31, -(2**31), 2**32 - 1, 2**32]
WEIGHT = np.linspace(0.5, 1, DIM)
BUCKET_SEEDS = (0x9E3779B9, 0x85EBCA6B)


def words(keys) -> np.ndarray:
    return np.array(keys, np.int64).view(np.uint32).reshape(-1, 2)


@functools.cache
def colliding(count: int) -> list[int]:
    """Keys that hash to the last of 2, 4 and 8 owners, and to one first bucket of 64,
    and choose one second bucket: more than both hold."""
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2**22)
    first, step = (hash_words(words(keys), seed) for seed in BUCKET_SEEDS)
    chosen = (row_shard_of(words(keys), 8) == 7) & (first % 64 == 5)
    return keys[chosen & (step % 63 % 8 == 1)][:count].tolist()


some_keys = st.lists(
    st.sampled_from(EXTREME) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20
)


def weak_hash(words, seed):
    """Returns hashes of which many are alike."""
    return hash_words(words, seed) % np.uint32(2)


@pytest.mark.parametrize("hash_of_words", [hash_words, weak_hash])
def test_different_keys_are_numbered(hash_of_words, monkeypatch):
    monkeypatch.setattr("embark_jax.embedding.keys.hash_words", hash_of_words)
    number = jax.jit(lambda keys, wanted: number_keys(words_of(keys), wanted))

    @hypothesis.given(some_keys, st.integers(0, 2**20 - 1))
    @hypothesis.settings(max_examples=40, database=None)
    def check(keys, mask):
        keys = np.resize(keys, 20)
        wanted = np.array([mask >> i & 1 for i in range(20)], bool)
        with jax.enable_x64(True):
            on_devices = jnp.asarray(keys)
        numbers = np.asarray(number(on_devices, wanted))
        assert (numbers[~wanted] == 20).all()
        pairs = set(zip(keys[wanted].tolist(), numbers[wanted].tolist(), strict=True))
        different = set(keys[wanted].tolist())
        assert len(pairs) == len(different)
        assert {number for _, number in pairs} == set(range(len(different)))

    check()


def test_hosts_and_devices_hash_alike():
    keys = words([*EXTREME, *range(100)])
    for row_shards in (1, 3, 8):
        np.testing.assert_array_equal(
            row_shard_of(jnp.asarray(keys), row_shards), row_shard_of(keys, row_shards)
        )


def trainer_of(
    mesh, cluster, slots, max_slots, table_options=None, capacity=40, **options
) -> ej.Trainer:
    table = ej.TableSpec.dynamic(
        "user", DIM, slots, max_slots, init_scale=SCALE, **(table_options or {})
    )
    nodes, gpus = mesh
    devices = nodes * gpus
    placed = [Placement(table, cluster, devices, 1, tuple(range(devices)))]
    features = [ej.FeatureSpec("user", hotness=HOTNESS)]
    model = ej.FunctionModel(
        {"weight": jnp.asarray(WEIGHT, jnp.float32)},
        lambda params, dense, embeddings: embeddings["user"] @ params["weight"],
    )
    return make_trainer(
        make_plan(features, placed, nodes, gpus, BATCH, capacity),
        model,
        ej.SGD(RATE),
        dense_optimizer=optax.sgd(0.0),
        **options,
    )


def batch_of(keys, rng) -> ej.Batch:
    """Of some of the keys, each at least once; some cells are padded."""
    cells = rng.permutation(np.concatenate([keys, rng.choice(keys, BATCH * HOTNESS)]))
    cells = np.concatenate([keys, cells])[: BATCH * HOTNESS]
    ids = np.full((BATCH, HOTNESS), 5, np.int64)
    ids[:, 0] = cells[:BATCH]
    ids[:, 1] = cells[BATCH:]
    ids[rng.random(ids.shape) < 0.1] = -1
    return ej.Batch(
        np.zeros((BATCH, 0), np.float32),
        {"user": ids},
        rng.integers(0, 2, BATCH).astype(np.float32),
    )


def cells_of(batch: ej.Batch) -> list[tuple[int, int]]:
    """``(sample, key)`` of each cell that is no padding."""
    return [
        (sample, int(batch.ids["user"][sample, i]))
        for sample, i in np.argwhere(batch.ids["user"] != -1)
    ]


def logits_of(rows: dict[int, np.ndarray], batch: ej.Batch) -> np.ndarray:
    """Logits from a dictionary of rows; other keys have their initial ones."""
    logits = np.zeros(BATCH)
    for sample, key in cells_of(batch):
        row = rows[key] if key in rows else initial_row(key % 2**64).astype(np.float64)
        logits[sample] += row @ WEIGHT
    return logits


def trained(rows: dict[int, np.ndarray], batch: ej.Batch) -> np.ndarray:
    """Logits of a batch, which then updates the rows of its keys."""
    cells, logits = cells_of(batch), logits_of(rows, batch)
    slope = (1 / (1 + np.exp(-logits)) - batch.labels) / BATCH
    for sample, key in cells:
        row = rows.setdefault(key, initial_row(key % 2**64).astype(np.float64))
        rows[key] = row - RATE * slope[sample] * WEIGHT
    return logits


def assert_table(trainer: ej.Trainer, rows: dict[int, np.ndarray]) -> None:
    table = trainer.table("user")
    np.testing.assert_array_equal(table.keys, sorted(rows))
    expected = np.array([rows[key] for key in table.keys.tolist()])
    np.testing.assert_allclose(table.rows, expected, rtol=1e-5, atol=1e-6)
    assert (np.abs(table.rows).max(axis=1) > 0).all()


@pytest.mark.parametrize(
    ("mesh", "cluster", "slots", "options"),
    [
        ((1, 1), "ub", 10_000, {}),
        pytest.param((1, 2), "rb", 64, {}, marks=pytest.mark.slow),
        pytest.param((2, 4), "ub", 256, {}, marks=pytest.mark.slow),
        pytest.param((2, 4), "rb", 256, {}, marks=pytest.mark.slow),
    ],
)
def test_hostile_keys_beside_a_dictionary(mesh, cluster, slots, options):
    """Extreme ones, ones that collide in all hashes, and batches of new ones alone; at
    times more than there are slots, which grow from 32."""
    trainer = trainer_of(mesh, cluster, 32, slots, **options)
    rng, rows = np.random.default_rng(0), {}
    hostile = np.array([*EXTREME, *colliding(60)])
    batches = [
        batch_of(
            rng.integers(-(2**63), 2**63 - 1, 30)  # all new
            if step % 3 == 2
            else rng.choice(hostile, 25, replace=False),
            rng,
        )
        for step in range(12)
    ]
    results = trainer.iterate_batches(batches)
    for batch, result in zip(batches, results, strict=True):
        logits = trained(rows, batch)
        np.testing.assert_allclose(result.logits, logits, rtol=1e-5, atol=1e-5)
    assert_table(trainer, rows)
    unseen = batch_of(np.full(BATCH, 77), rng)
    ((_, scored),) = trainer.predict([unseen])
    np.testing.assert_allclose(scored, logits_of({}, unseen), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"evicted": "disk", "evict": "lfu"},
    ],
)
def test_any_keys_on_one_mesh_after_another_beside_a_dictionary(options, tmp_path):
    """Each mesh goes on from the checkpoint of the one before; the table grows on all
    of them, and rows leave on some. Other batches are scored in between."""
    rng, rows = np.random.default_rng(0), {}
    hostile, meshes = np.array([*EXTREME, *colliding(30)]), [(2, 4), (1, 2)]
    with ej.Checkpointer(tmp_path, {"seed": 1}, keep=1) as checkpoints:
        for mesh in [*meshes, *meshes]:
            cluster = rng.choice(["ub", "rb"])
            slots = 160 if mesh == (2, 4) else 72
            trainer = trainer_of(mesh, cluster, 8, slots, options)
            if rows:
                trainer.load(checkpoints)
                assert_table(trainer, rows)
            for _ in range(5):
                new = rng.integers(-(2**63), 2**63, rng.integers(2, 20), np.int64)
                again = rng.choice(sorted(rows) or hostile, 6)
                batch = batch_of(
                    np.concatenate([new, again, rng.choice(hostile, 5)]), rng
                )
                (result,) = trainer.iterate_batches([batch])
                logits = trained(rows, batch)
                np.testing.assert_allclose(result.logits, logits, rtol=1e-5, atol=1e-5)
                strange = rng.integers(-(2**63), 2**63, 9, np.int64)
                scoring = trainer.predict([batch, batch_of(strange, rng)])
                for scored_batch, scored in scoring:
                    expected = logits_of(rows, scored_batch)
                    np.testing.assert_allclose(scored, expected, rtol=1e-5, atol=1e-5)
            assert_table(trainer, rows)
            assert trainer.recompilations > 0
            checkpoints.save(
                trainer.whole_state(), trainer.step, trainer.embeddings, {}
            )
    assert len(rows) > slots


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "max_slots"),
    [
        ({}, 400),
        ({"evict": "lru", "evicted": "discard"}, 48),
        ({"evict": "lfu", "evicted": "discard"}, 48),
    ],
)
def test_a_batch_that_is_replayed_is_counted_once(options, max_slots):
    """With capacities that grow several times: with others behind it, and the next one
    routed ahead of its step. Other batches are scored in between."""

    def run(**trainer_options):
        trainer = trainer_of((1, 2), "ub", 48, max_slots, options, **trainer_options)
        rng, losses = np.random.default_rng(3), []
        for day in range(4):
            batches = [
                batch_of(
                    np.concatenate(
                        [
                            rng.integers(0, 12, 3 + day),
                            100 * day + rng.integers(0, 30, 4 + 3 * (step % 2)),
                            100 * max(day - 2, 0) + np.arange(3),
                        ]
                    ),
                    rng,
                )
                for step in range(4)
            ]
            for result in trainer.iterate_batches(batches):
                losses.append(result.loss)
                if result.step % 3 == 0:
                    list(trainer.predict([batches[0]]))
        assert trainer.cached is not None
        figures = trainer.cached.figures()
        del figures["cache_late"]
        table = trainer.table("user")
        outcome = losses, figures, table.keys.tolist(), table.rows.tolist()
        return outcome, trainer.recompilations

    expected, recompilations = run()
    outcome, more_recompilations = run(capacity=1)
    assert outcome == expected
    assert more_recompilations >= recompilations + 2


@pytest.mark.parametrize(
    ("cluster", "exchange"), [("ub", "flat"), ("ub", "hierarchical"), ("rb", "flat")]
)
def test_keys_travel_in_as_many_bytes_as_planned(cluster, exchange):
    table = ej.TableSpec.dynamic("user", DIM, 64, 64)
    placed = [Placement(table, cluster, 8, 1, tuple(range(8)), exchange=exchange)]
    capacity = 5
    plan = make_plan([ej.FeatureSpec("user", hotness=2)], placed, 2, 4, 16, capacity)
    collection = ej.EmbeddingCollection(plan, plan.make_mesh())
    ids = jax.ShapeDtypeStruct((16, 2), jnp.int32)
    route = jax.jit(lambda ids: collection.route({"user": ids}, {}))
    with jax.enable_x64(True):
        compiled = route.lower(ids).compile()
    (storage,) = plan.storages
    expected = Counter()
    for part in storage_collectives(storage.kind, 2, 4, 2, False, Wire()):
        if part.phase == "id exchange":
            size = part.fixed_bytes + part.sum_bytes + capacity * part.id_bytes
            expected[part.kind, int(size)] += 1
    found = counted(str(compiled.as_text()))
    del found["all_reduce", 8]  # of the capacity that is needed, and of bad ids
    assert found == expected
