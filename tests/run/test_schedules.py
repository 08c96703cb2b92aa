"""Learning rates over the steps, against their formulas."""

import math

import pytest

from embark_jax.config import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    PolynomialScheduleConfig,
    StepScheduleConfig,
)
from embark_jax.run.optimizers import build_schedule

STEPS = 12


def cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


RISE = [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ConstantScheduleConfig(warmup_steps=4), RISE + 8 * [1.0]),
        (CosineScheduleConfig(), [cosine(t / 12) for t in range(12)]),
        (
            CosineScheduleConfig(warmup_steps=4, decay_steps=4, end_factor=0.1),
            RISE + [0.1 + 0.9 * cosine(min(t, 4) / 4) for t in range(8)],
        ),
        (
            PolynomialScheduleConfig(warmup_steps=4, hold_steps=2, power=2),
            RISE + [1.0, 1.0] + [(1 - t / 6) ** 2 for t in range(6)],
        ),
        (StepScheduleConfig(at=(3, 6), factor=0.5), 3 * [1] + 3 * [0.5] + 6 * [0.25]),
        (
            StepScheduleConfig(warmup_steps=4, at=(6,)),
            RISE + 2 * [1.0] + 6 * [0.1],
        ),
    ],
    ids=lambda each: each.kind if hasattr(each, "kind") else "",
)
def test_factors_are_those_of_the_formula(config, expected):
    schedule = build_schedule(config, STEPS)
    assert schedule is not None
    assert [float(schedule(t)) for t in range(STEPS)] == pytest.approx(
        expected, abs=1e-6
    )


def test_without_options_there_is_none():
    assert build_schedule(ConstantScheduleConfig(), STEPS) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CosineScheduleConfig(warmup_steps=12), "take 12 steps, must be fewer than"),
        (
            PolynomialScheduleConfig(warmup_steps=4, hold_steps=9),
            "take 13 steps, must be fewer than the 12",
        ),
        (StepScheduleConfig(warmup_steps=4, at=(4,)), "at has step 4, must be after"),
    ],
)
def test_what_leaves_no_step_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        build_schedule(config, STEPS)
