"""Cases of which ``make test`` tries some, and ``make test-all`` the others too."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def thorough(cases: Iterable, quick: Container) -> list:
    """Parameters of a test: those that are not in ``quick`` are marked slow."""
    return [
        case if case in quick else pytest.param(case, marks=pytest.mark.slow)
        for case in cases
    ]
