"""Layers train alike whether they are replicated, split or in two stages."""

import itertools

import jax
import numpy as np
import pytest

from experiments.dense_parallel.pipeline import Pipeline
from experiments.dense_parallel.run import (
    RATE,
    clicks,
    in_one_program,
    layers_of,
    products,
)

WIDTHS, BATCH, STEPS = (8, 16, 16, 8, 4), 16, 3


def losses_in_one_program(kind, devices):
    step, params, samples = in_one_program(kind, WIDTHS, jax.devices()[:devices])
    x, y = jax.device_put(clicks(WIDTHS, BATCH), samples)
    losses = []
    for _ in range(STEPS):
        params, loss = step(params, x, y)
        losses.append(float(loss))
    return losses


def test_all_three_have_the_same_losses():
    expected = losses_in_one_program("replicated", 1)
    assert expected[-1] < expected[0]
    assert losses_in_one_program("tensor", 4) == pytest.approx(expected, rel=1e-5)
    pipeline = Pipeline(layers_of(WIDTHS), jax.devices()[:4], 4, RATE)
    batch = pipeline.split(*clicks(WIDTHS, BATCH))
    found = [float(pipeline.step(batch)) for _ in range(STEPS)]
    assert found == pytest.approx(expected, rel=1e-5)
    # Of two devices each sends the middle layer's 16 values of half of the samples, and
    # once around a ring the gradients of the first stage.
    crossing = BATCH // 2 * 16 * 4
    stage_bytes = 4 * (8 * 16 + 16 + 16 * 16 + 16)
    assert pipeline.sent_bytes == crossing + stage_bytes


def test_a_device_has_its_share_of_the_products():
    whole = sum(a * b for a, b in itertools.pairwise(WIDTHS)) * BATCH
    for kind in ("replicated", "tensor"):
        shapes = list(products(kind, WIDTHS, BATCH, 4))
        assert sum(np.prod(shape) for shape in shapes) == whole / 4
    stage = sum(np.prod(shape) for shape in products("pipeline", WIDTHS, BATCH, 2))
    assert stage == BATCH * (8 * 16 + 16 * 16)
