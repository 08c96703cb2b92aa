"""Dense optimizers against NumPy float64, step by step; schedules against formulas."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import TypeAdapter

from embark_jax.config.optimizers import AnyDenseOptimizerConfig, ScheduleConfig
from embark_jax.plans.options import DENSE_OPTIMIZERS
from embark_jax.run.optimizers import (
    build_dense_optimizer,
    build_schedule,
    state_values,
)

STEPS, LEARNING_RATE, EPS = 20, 0.05, 1e-3
RISE = [0.25, 0.5, 0.75, 1.0]


@pytest.fixture(autouse=True)
def standard_promotion():
    # optax's Adam raises a float to an integer step, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        yield


def dense(kind: str, **keys):
    return TypeAdapter(AnyDenseOptimizerConfig).validate_python({"kind": kind, **keys})


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
    eps = {"eps": EPS} if "eps" in DENSE_OPTIMIZERS[kind] else {}
    config = dense(kind, learning_rate=LEARNING_RATE, weight_decay=weight_decay, **eps)
    optimizer = build_dense_optimizer(config, STEPS)
    params: Any = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), start)
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


def moved(config, gradients):
    """What each step changes in parameters of ones."""
    optimizer = build_dense_optimizer(config, len(gradients))
    params = jnp.ones(len(gradients[0]))
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)
        yield np.asarray(updates)


def test_gradients_are_clipped_and_the_rate_follows_its_schedule():
    # The norm of (3, 4) is 5, clipped to 1; the rate is halved after 2 steps.
    schedule = {"kind": "steps", "at": [2], "factor": 0.5}
    config = dense("sgd", learning_rate=0.5, clip_norm=1.0, schedule=schedule)
    found = list(moved(config, [[3.0, 4.0]] * 4))
    expected = [[-0.6 * rate, -0.8 * rate] for rate in (0.5, 0.5, 0.25, 0.25)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_any_of_optax_by_name():
    """AdamW as optax has it equals Adam with decoupled decay as it is built in."""
    schedule = {"kind": "cosine", "warmup_steps": 2}
    rates = {"learning_rate": 0.1, "clip_norm": 1.5, "weight_decay": 0.2}
    keys = {"schedule": schedule, **rates}
    gradients = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    of_optax, built_in = dense("optax.adamw", **keys), dense("adam", **keys)
    found, expected = (list(moved(each, gradients)) for each in (of_optax, built_in))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert state_values(of_optax) == state_values(built_in) == 2
    assert [state_values(dense(kind)) for kind in ("sgd", "adagrad")] == [0, 1]


def schedule_of(keys):
    return TypeAdapter(ScheduleConfig).validate_python(keys)


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"kind": "constant", "warmup_steps": 4}, RISE + 8 * [1.0]),
        ({"kind": "cosine"}, [cosine(t / 12) for t in range(12)]),
        (
            {"kind": "cosine", "warmup_steps": 4},
            RISE + [cosine(t / 8) for t in range(8)],
        ),
        (
            {"kind": "polynomial", "warmup_steps": 4, "hold_steps": 2, "power": 2},
            RISE + [1.0, 1.0] + [(1 - t / 6) ** 2 for t in range(6)],
        ),
        (
            {"kind": "steps", "at": (3, 6), "factor": 0.5},
            3 * [1] + 3 * [0.5] + 6 * [0.25],
        ),
        (
            {"kind": "steps", "warmup_steps": 4, "at": (6,)},
            RISE + 2 * [1.0] + 6 * [0.1],
        ),
    ],
)
def test_factors_are_those_of_the_formula(keys, expected):
    schedule: Any = build_schedule(schedule_of(keys), 12)
    assert schedule is not None
    assert [float(schedule(t)) for t in range(12)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("steps", [13_000, 1_000_000])
@pytest.mark.parametrize("kind", ["cosine", "polynomial"])
def test_the_last_steps_of_a_long_run_have_a_rate(kind, steps):
    """As counts come: whole numbers of optax, float32 of rows."""
    schedule: Any = build_schedule(schedule_of({"kind": kind}), steps)
    counts = np.arange(steps - 100, steps + 2)
    part = (steps - np.minimum(counts, steps)) / steps
    expected = np.sin(np.pi / 2 * part) ** 2 if kind == "cosine" else part
    for dtype in (jnp.int32, jnp.float32):
        found = jax.vmap(schedule)(jnp.asarray(counts, dtype))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
