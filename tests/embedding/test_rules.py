"""Tables with rules and initial values of their own, on 2 × 4 devices."""

import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import embark_jax as ej
from embark_jax.config import EmbeddingConfig
from embark_jax.embedding.rules import check_planned
from embark_jax.plans.placement import Placement
from tests.builders import make_plan, tables_of
from tests.embedding import reference
from tests.embedding.problems import batches, begin

RULES = {
    "": ej.RowwiseAdagrad(1.0, eps=1.0),
    "fast": ej.RowwiseAdagrad(4.0, eps=1.0),
    "adam": ej.LazyAdam(0.1, eps=1.0),
    "sgd": ej.SGD(0.5),
    "squares": ej.Adagrad(1.0, eps=1.0),
}
TABLES = [
    ej.TableSpec("a", 29, 8, init_scale=0.5),
    ej.TableSpec("b", 11, 8, init_scale=0.5, optimizer="fast", initializer="normal"),
    ej.TableSpec("c", 13, 8, init_scale=0.5, optimizer="adam"),
    ej.TableSpec("d", 7, 8, init_scale=0.5, optimizer="sgd"),
    ej.TableSpec("e", 17, 8, init_scale=0.5, optimizer="squares"),
]
FEATURES = [
    ej.FeatureSpec("a", hotness=2),
    ej.FeatureSpec("b", hotness=3, pooling="mean"),
    ej.FeatureSpec("b2", "b"),
    ej.FeatureSpec("c", hotness=2),
    ej.FeatureSpec("d"),
    ej.FeatureSpec("e", hotness=2),
]
PLAN = make_plan(
    FEATURES,
    [
        Placement(TABLES[0], "rb", 3, 1, (0, 5, 7)),
        Placement(TABLES[1], "rb", 2, 2, (3, 1, 0, 7)),
        Placement(TABLES[2], "ub", 2, 1, (2, 6)),
        Placement(TABLES[3], "dp"),
        Placement(TABLES[4], "ub", 3, 1, (1, 2, 4), hot_rows=5),
    ],
    2,
    4,
    16,
)


def test_a_rule_with_more_state_than_was_planned_is_refused():
    """Row-wise Adagrad keeps a value a row, Adam two a parameter."""
    tables, features = [ej.TableSpec("a", 3_000_000, 64)], [ej.FeatureSpec("a")]
    fleet = ej.fleets.dgx_h100(1, 1)
    plan = ej.plan(tables, features, fleet, batch=256, memory_gb=1.2)
    check_planned(plan, ej.SGD(0.1))
    with pytest.raises(ValueError, match="state of rowwise_adagrad; LazyAdam") as error:
        check_planned(plan, ej.LazyAdam(0.1))
    assert "plan for it, by ej.plan(…, optimizer='adam')" in str(error.value)
    planned, needed = (
        1e6 * float(number.replace(",", ""))
        for number in re.findall(r"([\d,]+\.\d) MB", str(error.value))
    )
    assert planned == pytest.approx(plan.prediction.device_bytes[0], rel=1e-3)
    assert needed - planned == pytest.approx(3_000_000 * 4 * (2 * 64 - 1), rel=1e-3)
    again = ej.Plan.from_json(plan.to_json())
    assert again.prediction.optimizer == "rowwise_adagrad"
    adam = ej.plan(tables, features, fleet, batch=256, optimizer="adam")
    assert adam.prediction.device_bytes[0] == pytest.approx(needed, rel=1e-2)
    check_planned(adam, ej.LazyAdam(0.1))


def test_each_table_follows_its_own_rule():
    rules = ej.RowRules(RULES[""], {n: rule for n, rule in RULES.items() if n})
    collection, storages, state, step = begin(PLAN, rules)
    expected = {
        n: x.astype(np.float64) for n, x in tables_of(collection, storages).items()
    }
    states = {
        t.name: reference.init_state({t.name: expected[t.name]}, RULES[t.optimizer])
        for t in PLAN.tables
    }
    for number, (ids, weights, gradients) in enumerate(batches(PLAN, 3), start=1):
        summed, touched = reference.row_gradients(
            expected, PLAN.features, ids, weights, gradients
        )
        for t in PLAN.tables:
            reference.update(
                expected[t.name],
                states[t.name][t.name],
                summed[t.name],
                touched[t.name],
                RULES[t.optimizer],
                number,
            )
        batch = ids, weights, gradients
        storages, state, *_ = step(storages, state, batch, number)
    for name, found in tables_of(collection, storages).items():
        np.testing.assert_allclose(
            found, expected[name], rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_an_unknown_rule_is_refused():
    collection = ej.EmbeddingCollection(PLAN, PLAN.make_mesh())
    with pytest.raises(ValueError, match="table 'e': optimizer is 'squares', must be"):
        collection.init_optimizer(
            ej.RowRules(RULES[""], {n: RULES[n] for n in ("fast", "adam", "sgd")})
        )


def test_normal_initial_values_are_those_of_jax():
    collection = ej.EmbeddingCollection(PLAN, PLAN.make_mesh())
    key = jax.random.key(5)
    storages = collection.init(key)
    key = jax.random.fold_in(key, zlib.crc32(b"b") >> 1)

    def value(row, column):
        each = jax.random.fold_in(jax.random.fold_in(key, row), 0)
        return jax.random.normal(jax.random.fold_in(each, column)) * 0.5

    by_row = jax.vmap(jax.vmap(value, (None, 0)), (0, None))
    expected = by_row(jnp.arange(11), jnp.arange(8))
    found = ej.export_table(collection, storages, "b")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    uniform = ej.export_table(collection, storages, "a")
    assert np.abs(uniform).max() <= 0.5 < np.abs(found).max()


def test_a_config_names_the_rules():
    config = EmbeddingConfig.model_validate(
        {
            "optimizer": {"kind": "adam", "learning_rate": 0.1},
            "tables": {
                "z": {"optimizer": {"learning_rate": 0.5}},
                "b": {"optimizer": {"learning_rate": 0.5}},
                "s": {"optimizer": {"kind": "sgd"}},
                "same": {"optimizer": {"learning_rate": 0.1}},
                "t": {},
            },
        }
    )
    names = {name: config.rule_of(name) for name in (*config.tables, "other")}
    expected = {"z": "b", "b": "b", "s": "s", "same": "", "t": "", "other": ""}
    assert names == expected
    assert config.optimizer_of("s").kind == "sgd"
    assert config.optimizer_of("s").learning_rate == 0.1
    assert config.optimizer_of("z").kind == "adam"
