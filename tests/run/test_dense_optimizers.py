"""Dense optimizers against NumPy float64, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from embark_jax._base import yaml_text
from embark_jax._base.config import ConfigError
from embark_jax.config import (
    DenseOptimizerConfig,
    StepScheduleConfig,
    optimizers,
    reading,
)
from embark_jax.plans.options import DENSE_OPTIMIZERS
from embark_jax.run.optimizers import build_dense_optimizer, state_values
from tests import runs

STEPS, LEARNING_RATE, EPS = 20, 0.05, 1e-3


@pytest.fixture(autouse=True)
def standard_promotion():
    # optax's Adam raises a float to an integer step, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        yield


def numpy_steps(kind, p, gradients, weight_decay):
    """Parameters after each step, from the formulas of the docstring."""
    a = m = v = np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        match kind:
            case "sgd":
                u = g
            case "adagrad":
                a = a + g**2
                u = g / (np.sqrt(a) + EPS)
            case "adam":
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + EPS)
            case _:
                raise ValueError(f"{kind} has no formula here")
        p = p - LEARNING_RATE * (u + weight_decay * p)
        yield p


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", DENSE_OPTIMIZERS)
def test_steps_equal_numpy(kind, weight_decay):
    rng = np.random.default_rng(0)
    start = {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(4)}
    # Gradients of very different sizes, some as small as eps, some zero.
    gradients = {
        name: rng.standard_normal((STEPS, *p.shape))
        * 10.0 ** rng.integers(-4, 2, p.shape)
        for name, p in start.items()
    }
    gradients["w"][:, 0] = 0
    config = DenseOptimizerConfig(
        kind=kind,
        learning_rate=LEARNING_RATE,
        eps=EPS if "eps" in DENSE_OPTIMIZERS[kind] else None,
        weight_decay=weight_decay,
    )
    optimizer = build_dense_optimizer(config, STEPS)
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), start)
    state = optimizer.init(params)
    expected = {
        name: list(numpy_steps(kind, p, gradients[name], weight_decay))
        for name, p in start.items()
    }
    update = jax.jit(optimizer.update)
    # Adam's correction 1 - 0.999^t loses digits in float32: an error of 6e-8 on t/1000
    # is 6e-5 / t, under the root half of it, and lr times the sum over t is 5.4e-6.
    atol = 6e-6 if kind == "adam" else 1e-6
    for t in range(STEPS):
        step = {name: jnp.asarray(g[t], jnp.float32) for name, g in gradients.items()}
        updates, state = update(step, state, params)
        params = optax.apply_updates(params, updates)
        for name in start:
            np.testing.assert_allclose(
                params[name], expected[name][t], rtol=1e-5, atol=atol
            )


def test_adagrad_s_first_step_by_hand():
    # MLPerf's settings. a = 0.5², so u = 0.5 / (0.5 + 1e-8) = 1 - 2e-8; for the second
    # a = 1e-16, so u = 1e-8 / (1e-8 + 1e-8) = 1/2; for the third 0 / (0 + 1e-8) = 0.
    config = DenseOptimizerConfig(kind="adagrad", learning_rate=0.004, eps=1e-8)
    optimizer = build_dense_optimizer(config, STEPS)
    params = jnp.ones(3)
    updates, _ = optimizer.update(
        jnp.asarray([0.5, 1e-8, 0.0]), optimizer.init(params), params
    )
    np.testing.assert_allclose(updates, [-0.004, -0.002, 0.0], rtol=1e-6)


def test_without_weight_decay_zero_gradients_move_nothing():
    params = jnp.asarray([1.0, -2.0])
    for kind in DENSE_OPTIMIZERS:
        optimizer = build_dense_optimizer(DenseOptimizerConfig(kind=kind), 1)
        updates, _ = optimizer.update(jnp.zeros(2), optimizer.init(params), params)
        np.testing.assert_array_equal(updates, np.zeros(2))


def test_gradients_are_clipped_and_the_rate_follows_its_schedule():
    # The norm of (3, 4, 0) is 5, clipped to 1; the rate is halved after 2 steps.
    config = DenseOptimizerConfig(
        kind="sgd",
        learning_rate=0.5,
        clip_norm=1.0,
        schedule=StepScheduleConfig(at=(2,), factor=0.5),
    )
    optimizer = build_dense_optimizer(config, 4)
    params = {"w": jnp.zeros(2), "b": jnp.zeros(1)}
    state = optimizer.init(params)
    gradient = {"w": jnp.asarray([3.0, 4.0]), "b": jnp.zeros(1)}
    for rate in (0.5, 0.5, 0.25, 0.25):
        updates, state = optimizer.update(gradient, state, params)
        np.testing.assert_allclose(updates["w"], [-0.6 * rate, -0.8 * rate], rtol=1e-6)
        np.testing.assert_array_equal(updates["b"], [0.0])


def moved(config, steps=5):
    """Parameters after some steps of made-up gradients."""
    rng = np.random.default_rng(0)
    optimizer = build_dense_optimizer(config, steps)
    params = {"w": jnp.asarray(rng.standard_normal(4), jnp.float32)}
    state = optimizer.init(params)
    for _ in range(steps):
        gradient = {"w": jnp.asarray(rng.standard_normal(4), jnp.float32)}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params["w"]


def test_any_of_optax_by_name():
    """AdamW as optax has it equals Adam with decoupled decay as it is built in."""
    shared = {"learning_rate": 0.1, "clip_norm": 1.5}
    shared["schedule"] = {"kind": "cosine", "warmup_steps": 2}
    of_optax = DenseOptimizerConfig(
        kind="optax.adamw", options={"weight_decay": 0.2}, **shared
    )
    built_in = DenseOptimizerConfig(kind="adam", weight_decay=0.2, **shared)
    np.testing.assert_allclose(moved(of_optax), moved(built_in), rtol=1e-5)
    assert state_values(of_optax) == state_values(built_in) == 2
    lion = DenseOptimizerConfig(kind="optax.lion", learning_rate=0.1)
    # Lion moves each parameter by the learning rate, one way or the other, and decays.
    np.testing.assert_allclose(np.abs(moved(lion, 1) - moved(lion, 0)), 0.1, rtol=0.05)
    assert [
        state_values(DenseOptimizerConfig(kind=kind)) for kind in ("sgd", "adagrad")
    ] == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "adamw"},
            "must be sgd, adagrad, adam, an optimizer of optax such as",
        ),
        ({"kind": "adam", "options": {"b1": 0.5}}, "options are for others than adam"),
        ({"kind": "sgd", "eps": 1e-3}, "eps is no parameter of sgd: leave it out"),
        (
            {"kind": "optax.adamw", "weight_decay": 0.1},
            "set those that it",
        ),
    ],
)
def test_configs_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        DenseOptimizerConfig(**given)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("sgd", {"weight_decay"}),
        ("adagrad", {"eps", "weight_decay"}),
        ("adam", {"eps", "weight_decay"}),
        ("optax.lion", {"options"}),
    ],
)
def test_a_config_stores_the_keys_of_its_own_kind(kind, own, tmp_path):
    text = (
        "data: {kind: synthetic}\ndense_optimizer: {kind: KIND, learning_rate: 0.5}\n"
    )
    path = runs.write_config(tmp_path, text.replace("KIND", kind))
    config = reading.load(path)
    stored = yaml_text.parse(reading.dump_yaml(config))["dense_optimizer"]
    assert stored.keys() == {"kind", "learning_rate", "schedule"} | own
    reading.save(config, path)
    assert reading.load(path) == config
    changed = reading.load(path, ["dense_optimizer.kind=sgd"])
    expected = DenseOptimizerConfig(kind="sgd", learning_rate=0.5)
    assert changed.dense_optimizer == expected


def test_a_default_is_of_its_kind(monkeypatch):
    monkeypatch.setitem(optimizers._DENSE_DEFAULTS, "sgd", {"eps": 0.5})
    assert DenseOptimizerConfig(kind="sgd").eps == 0.5
    assert DenseOptimizerConfig(kind="adam").eps == 1e-8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "optax.adamwww"}, "optax has no class or function 'adamwww'"),
        (
            {"kind": "optax.adamw", "options": {"beta": 1}},
            "argument 'beta'; known: b1, b2",
        ),
        ({"kind": "types:SimpleNamespace"}, "gives a SimpleNamespace, must give an op"),
    ],
)
def test_names_that_are_none(given, message):
    with pytest.raises(ConfigError, match=message):
        build_dense_optimizer(DenseOptimizerConfig(**given), STEPS)
