"""Statistics of a power law against sums over all rows."""

import numpy as np
import pytest

from embark_jax.statistics.skew import HEAD_ROWS, Zipf


def probabilities(rows, exponent):
    density = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return density / density.sum()


@pytest.mark.parametrize("rows", [1, HEAD_ROWS + 1, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 1.1])
@pytest.mark.parametrize("draws", [1, 100_000])
def test_expected_unique(rows, exponent, draws):
    p = probabilities(rows, exponent)
    with np.errstate(divide="ignore"):
        exact = -np.expm1(draws * np.log1p(-p)).sum()
    assert Zipf(exponent).expected_unique(rows, draws) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("rows", [5, HEAD_ROWS + 1, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 1.1])
@pytest.mark.parametrize("row_shards", [4, 12])
def test_what_falls_on_row_shards(rows, exponent, row_shards):
    p = probabilities(rows, exponent)
    exact = np.bincount(np.arange(rows) % row_shards, p, row_shards)
    found = Zipf(exponent).row_shard_shares(rows, row_shards)
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    assert found.sum() == pytest.approx(1)
