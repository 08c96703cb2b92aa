"""Answers a reader's first questions: why a step is long, and where it is uneven.

Each answer is a list of sentences; all of it comes from a plan's prediction.
"""

from __future__ import annotations

import numpy as np

from embark_jax._base.memory import bytes_text
from embark_jax.plans.plan import Plan
from embark_jax.report import summary

MOST_PHASES = 3
"""Phases that an answer names."""
LARGE_TABLE = 0.1
"""Smallest share of the step at which a table is named."""


def why(plan: Plan) -> list[str]:
    """Names the phases and tables that take most of the step; empty if none are
    known."""
    path = summary.critical_path(plan)
    step_ms = sum(path.values())
    if not step_ms:
        return []
    reasons = [
        f"{name} takes {path[name]:.3f} ms, {path[name] / step_ms:.0%} of the step"
        for name in sorted(path, key=lambda name: -path[name])[:MOST_PHASES]
        if path[name]
    ]
    largest = summary.decisions(plan)[0]
    if largest.ms is not None and largest.ms >= LARGE_TABLE * step_ms:
        reasons.append(
            f"{largest.name} ({largest.placement}, {largest.ids} ids a sample, dim "
            f"{largest.dim}) takes {largest.ms / step_ms:.0%} of it; without it, and "
            "the other tables where they are, the step would change by "
            f"{summary.without(plan, largest)}"
        )
    return reasons


def uneven(plan: Plan) -> list[str]:
    """Says how evenly load, memory and rows lie; empty if it is not known."""
    prediction = plan.prediction
    if prediction is None:
        return []
    sentences = []
    for what, values, show in (
        ("load", prediction.device_ms, lambda ms: f"{ms:.3f} ms"),
        ("memory", prediction.device_bytes, bytes_text),
    ):
        mean, largest = float(np.mean(values)), max(values)
        if mean:
            sentences.append(
                f"{what}: device {int(np.argmax(values))} has most, {show(largest)}, "
                f"{largest / mean:.2f}× the mean"
            )
    if prediction.breakdown is not None and prediction.step_ms:
        phases = np.array([*prediction.breakdown.phase_ms.values()])
        waiting_ms = float((phases.max(axis=1) - phases.mean(axis=1)).sum())
        sentences.append(
            "devices wait for the fullest one of each phase for "
            f"{waiting_ms / prediction.step_ms:.1%} of the step on average"
        )
    return [*sentences, *filter(None, [summary.uneven_rows(plan)])]
