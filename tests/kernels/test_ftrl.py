"""FTRL-proximal beside Algorithm 1 of the paper, number by number in Python."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from embark_kernels import FTRL, init_states, update_rows

from tests.kernels.implementations import each_implementation, run

ALPHA, BETA, L1, L2 = 0.3, 1.0, 0.4, 0.2
WIDTH, STEPS = 8, 12


def weight(z: float, n: float) -> float:
    if abs(z) <= L1:
        return 0.0
    return -(z - math.copysign(L1, z)) / ((BETA + math.sqrt(n)) / ALPHA + L2)


def weights_of_the_paper(gradients: list[float]) -> list[float]:
    """After each gradient, from 0. Its line "w = …" is before a gradient is known."""
    z = n = 0.0
    found = []
    for gradient in gradients:
        sigma = (math.sqrt(n + gradient**2) - math.sqrt(n)) / ALPHA
        z += gradient - sigma * weight(z, n)
        n += gradient**2
        found.append(weight(z, n))
    return found


@each_implementation
def test_rows_of_zeros_follow_the_paper(implementation):
    """Among them weights that become 0, and leave it again on the other side."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(STEPS, WIDTH)).astype(np.float32)
    optimizer = FTRL(ALPHA, BETA, L1, L2)
    table = jnp.zeros((3, WIDTH))
    states = init_states(optimizer, table)

    def step(table, states, gradient):
        rows = jnp.asarray([1], jnp.int32)
        return update_rows(
            table, states, rows, gradient, optimizer, implementation=implementation
        )

    found = []
    for gradient in gradients:
        table, states = run(implementation, step, table, states, gradient[None])
        found.append(np.asarray(table[1]))
    expected = np.transpose([weights_of_the_paper(list(g)) for g in gradients.T])
    assert 0 < np.sum(expected[1:] == 0) < expected.size / 2
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.equal(found, 0), expected == 0)
    np.testing.assert_array_equal(table[0], 0)


def test_without_regularization_any_rows_and_rates_descend():
    """The paper's section 3: its weights are then those of gradient descent, with the
    rate of each coordinate."""
    rng = np.random.default_rng(1)
    initial = rng.normal(size=(1, WIDTH)).astype(np.float32)
    optimizer = FTRL(ALPHA, BETA, schedule=lambda steps: 0.8**steps)
    table, states = jnp.asarray(initial), init_states(optimizer, jnp.asarray(initial))
    expected, squares = initial[0].astype(np.float64), np.zeros(WIDTH)
    update = jax.jit(
        lambda table, states, gradient, step: update_rows(
            table, states, jnp.zeros(1, jnp.int32), gradient, optimizer, step=step
        )
    )
    for step in range(1, STEPS + 1):
        gradient = rng.normal(size=(1, WIDTH)).astype(np.float32)
        table, states = update(table, states, gradient, step)
        squares += gradient[0].astype(np.float64) ** 2
        expected -= ALPHA * 0.8 ** (step - 1) / (BETA + np.sqrt(squares)) * gradient[0]
    np.testing.assert_allclose(table[0], expected, rtol=1e-5, atol=1e-6)
