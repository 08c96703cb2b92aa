"""Statistics of a power law, and of its hot and cold rows, against sums over all
rows."""

import numpy as np
import pytest

from embark_jax.statistics.skew import HEAD_ROWS, Zipf


@pytest.mark.parametrize("rows", [1, 50, HEAD_ROWS + 1, 3 * HEAD_ROWS, 1_000_000])
@pytest.mark.parametrize("exponent", [0.0, 0.9, 1.1, 1.3])
@pytest.mark.parametrize("hot", [0, 1, 7, 40])
def test_a_power_law_is_known_in_any_range_of_rows(rows, exponent, hot):
    hot = min(hot, rows - 1)
    probability = np.arange(1.0, rows + 1) ** -exponent
    probability /= probability.sum()
    zipf = Zipf(exponent)
    for begin, end in ((0, hot), (hot, rows)) if hot else ((0, rows),):
        mine = probability[begin:end]
        assert zipf.share(rows, begin, end) == pytest.approx(mine.sum(), rel=1e-4)
        mine = mine / mine.sum()
        within, count = zipf.within(rows, begin, end), end - begin
        for draws in (1.0, 500.0, 1e5):
            exact = -np.expm1(draws * np.log1p(-mine[mine < 1])).sum()
            exact += (mine == 1).sum()
            found = within.expected_unique(count, draws)
            assert found == pytest.approx(exact, rel=1e-4)
        for shards in {min(row_shards, count) for row_shards in (3, 4, 12)}:
            exact = np.bincount(np.arange(count) % shards, mine)
            found = within.row_shard_shares(count, shards)
            np.testing.assert_allclose(found, exact, rtol=1e-3)
            assert found.sum() == pytest.approx(1)
