"""Data to copy: clicks of users on items, made up here, or read from wherever yours
are."""

import numpy as np

from embark_jax import Batch, FeatureSpec

USERS, ITEMS = 500, 200


class Clicks:
    """Whether a user and an item are of one group, with noise.

    A step's batch is a function of seed and step alone, so that a run resumes exactly.

    Args:
      samples: of an epoch.
      seed: of the order of training samples.
    """

    table_rows = {"user": USERS, "item": ITEMS}  # noqa: RUF012
    features = (FeatureSpec("user"), FeatureSpec("item"))
    dense_features = 1

    def __init__(self, samples=10_000, *, seed=0):
        self.train_samples, self._seed = samples, seed

    def train_batch(self, step, batch_size):
        """The batch of a step, from 0."""
        first = step * batch_size
        epoch, places = np.divmod(
            np.arange(first, first + batch_size), self.train_samples
        )
        orders = {
            e: np.random.default_rng([self._seed, e]).permutation(self.train_samples)
            for e in np.unique(epoch)
        }
        return _batch(
            np.array([orders[e][p] for e, p in zip(epoch, places, strict=True)])
        )

    def validation_batches(self, batch_size):
        """The validation set once; None where there is none."""
        return None

    def test_batches(self, batch_size):
        """The test set once; the last batch may be shorter."""
        for start in range(0, 2_000, batch_size):
            stop = min(start + batch_size, 2_000)
            yield _batch(np.arange(start, stop) + 10**9)


def _batch(samples):
    """The samples of these numbers."""
    mixed = (samples.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    user, item = mixed >> np.uint64(40), mixed >> np.uint64(20)
    user, item = (user % USERS).astype(np.int32), (item % ITEMS).astype(np.int32)
    noise = (mixed >> np.uint64(8)) % np.uint64(10)
    label = ((user % 2 == item % 2) ^ (noise == 0)).astype(np.float32)
    dense = (noise[:, None] / 10).astype(np.float32)
    return Batch(dense, {"user": user[:, None], "item": item[:, None]}, label)
