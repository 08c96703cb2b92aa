"""All-hot batches: every sample once, in the window that it was in."""

import numpy as np
import pytest

from embark_jax.data import Batch, DataError, HotBatches
from embark_jax.plans.tables import FeatureSpec

ROWS, HOT, BATCH, WINDOW = 100, {"a": 30, "b": 60}, 8, 5


class Samples:
    """Sample i of the stream is known by its dense value; a third of ids are padding,
    and a few are no rows."""

    features = (FeatureSpec("a", hotness=2), FeatureSpec("b"))
    dense_features = 1
    table_rows = {"a": ROWS, "b": ROWS}  # noqa: RUF012
    train_samples = 1000

    def __init__(self, hot_share=0.5):
        self.reads, self.hot_share = 0, hot_share

    def train_batch(self, step, batch_size):
        self.reads += 1
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        a, b = [], []
        for number in numbers:
            rng = np.random.default_rng(number)
            top = 30 if rng.random() < self.hot_share else ROWS + 2
            ids = rng.integers(0, top, 3)
            a.append(np.where(rng.random(2) < 0.3, -1, ids[:2]))
            b.append(ids[2:])
        return Batch(
            numbers[:, None].astype(np.float32),
            {"a": np.array(a), "b": np.array(b)},
            (numbers % 2).astype(np.float32),
            {"a": np.array(a) * 0.5},
            locate="{}".format,
        )


def is_hot(batch):
    return all((batch.ids[name] < HOT[name]).all() for name in HOT)


@pytest.mark.parametrize("hot_share", [0.0, 0.5, 1.0])
def test_each_sample_comes_once_and_in_its_window(hot_share):
    plain, found = Samples(hot_share), []
    data = HotBatches(Samples(hot_share), HOT, BATCH, WINDOW)
    for number in range(3):
        batches = [data.train_batch(number * WINDOW + i, BATCH) for i in range(WINDOW)]
        samples = np.concatenate([batch.dense[:, 0] for batch in batches]).astype(int)
        first = number * WINDOW * BATCH
        assert sorted(samples) == list(range(first, first + WINDOW * BATCH))
        for batch in batches:
            assert is_hot(batch) >= batch.hot
            for i, sample in enumerate(batch.dense[:, 0].astype(int)):
                one = plain.train_batch(sample, 1)
                for mine, its in ((batch.ids, one.ids), (batch.weights, one.weights)):
                    for name, values in its.items():
                        np.testing.assert_array_equal(mine[name][i], values[0])
                assert batch.labels[i] == one.labels[0]
                assert batch.locate(i) == str(sample % BATCH)
        found.append([batch.hot for batch in batches])
        # As many all-hot batches as its all-hot samples fill.
        all_hot = sum(
            is_hot(plain.train_batch(first + i, 1)) for i in range(WINDOW * BATCH)
        )
        assert sum(found[-1]) == all_hot // BATCH
    # A step makes the routes of a batch of its own kind ahead, and of no other.
    assert np.abs(np.diff(np.ravel(found).astype(int))).sum() <= len(found)
    if hot_share == 0.5:
        assert 0 < np.sum(found) < np.size(found)


def test_a_batch_is_a_function_of_its_step_and_parts_make_it_up():
    data, again = (HotBatches(Samples(), HOT, BATCH, WINDOW) for _ in range(2))
    for step in (7, 3, 8):
        whole = data.train_batch(step, BATCH)
        parts = [again.train_batch(2 * step + part, BATCH // 2) for part in range(2)]
        joined = np.concatenate([part.dense for part in parts])
        np.testing.assert_array_equal(joined, whole.dense)
        assert {part.hot for part in parts} == {whole.hot}
    with pytest.raises(DataError, match="batches of 8 are sorted, cannot be cut"):
        data.train_batch(0, 3)


def test_a_window_is_read_once():
    data = HotBatches(Samples(1.0), HOT, BATCH, WINDOW)
    assert all(data.train_batch(step, BATCH).hot for step in range(WINDOW))
    assert data._dataset.reads == WINDOW
