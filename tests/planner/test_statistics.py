"""Statistics of a power law against sums over all rows."""

import numpy as np
import pytest

from embark_jax.planner.dealing import deal, in_turn
from embark_jax.planner.request.skew import HEAD_ROWS, Zipf


def probabilities(rows, exponent):
    density = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return density / density.sum()


@pytest.mark.parametrize("rows", [1, 7, HEAD_ROWS, HEAD_ROWS + 1, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.1])
@pytest.mark.parametrize("draws", [1, 1000, 100_000])
def test_expected_unique(rows, exponent, draws):
    p = probabilities(rows, exponent)
    with np.errstate(divide="ignore"):
        exact = -np.expm1(draws * np.log1p(-p)).sum()
    assert Zipf(exponent).expected_unique(rows, draws) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("rows", [5, HEAD_ROWS + 1, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 1.1])
@pytest.mark.parametrize("row_shards", [4, 12])
@pytest.mark.parametrize("dealt", [deal, in_turn])
def test_what_falls_on_row_shards(rows, exponent, row_shards, dealt):
    p = probabilities(rows, exponent)
    dealing = dealt(rows, row_shards)
    held_by = dealing.row_shards_of(np.arange(rows))
    exact = np.bincount(held_by, p, row_shards)
    found = Zipf(exponent).row_shard_shares(rows, dealing)
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    assert found.sum() == pytest.approx(1)
    touched = -np.expm1(100_000 * np.log1p(-p))
    found = Zipf(exponent).row_shard_unique(rows, 100_000, dealing)
    exact = np.bincount(held_by, touched, row_shards)
    # Only of full row shards are rows counted, of others they are taken to be alike.
    rtol = 1e-3 if dealing.full else 0.01
    np.testing.assert_allclose(found, exact, rtol=rtol)
