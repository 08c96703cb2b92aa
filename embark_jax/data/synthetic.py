"""Clicks with power-law ids, labelled by a known teacher model.

Any table size costs the same: ids come from an inverse CDF, and the teacher's row
effects from a hash, so nothing here is as large as a table.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.special import expit, ndtri

from embark_jax._base.config import config_error_at
from embark_jax.config import EmbeddingConfig, SyntheticConfig
from embark_jax.data.batch import Batch, id_dtype
from embark_jax.data.hashing import GOLDEN_GAMMA, splitmix64
from embark_jax.data.source import Description
from embark_jax.plans.tables import FeatureSpec, TableSpec, check_model

BLOCK = 1024
"""Samples per block. Each block has its own random stream, so a sample depends on its
position and not on the batch size."""

CALIBRATION_SAMPLES = 4 * BLOCK
MOST_VALUES = 2**16
"""Most ids and dense values of a sample: so many take CALIBRATION_SAMPLES 2 GB."""

_TRAIN, _TEST, _CALIBRATION = range(3)

# Normal logits with this mean and deviation give a click rate of 0.27 and let the best
# model reach an AUC of 0.80 (solved numerically).
_LOGIT_MEAN, _LOGIT_STD = -1.333, 1.367
# Shares of the logit's variance.
_DENSE_SHARE = 0.25
_ROW_SHARE = 0.55
_PAIR_SHARE = 0.20
_PAIRS = 4

# A hash of 64 bits is cut in four; each quarter picks a standard normal value.
_NORMALS = ndtri((np.arange(2**16) + 0.5) / 2**16).astype(np.float32)


def power_law_ids(
    uniform: np.ndarray, rows: int | np.ndarray, exponent: float
) -> np.ndarray:
    """Returns ids ``0 .. rows - 1`` whose frequency falls as ``(id + 1) ** -exponent``.

    They are the inverse CDF of the continuous power law on ``[1, rows + 1)``, rounded
    down: id k has the probability of the interval ``[k + 1, k + 2)``. Id 0 is the
    hottest.

    Args:
      uniform: float64 in [0, 1), any shape.
      rows: number of rows, of the whole table or for each id.
      exponent: exponent of the power law.

    Returns:
      Integers of the same shape, int64 if the table needs it.
    """
    # With p = 1 - exponent, x = (1 + u * ((rows + 1) ** p - 1)) ** (1 / p), written so
    # that nothing cancels near p = 0, where x = (rows + 1) ** u.
    power, log_end = 1.0 - exponent, np.log(rows + 1.0)
    if power == 0.0:
        log_x = uniform * log_end
    else:
        log_x = np.log1p(uniform * np.expm1(power * log_end)) / power
    # Rounding may step over either end of the interval.
    ids = np.clip(np.exp(log_x) - 1.0, 0, rows - 1)
    return ids.astype(id_dtype(int(np.max(rows))))


class SyntheticClicks:
    """A ``Dataset`` of any size whose best possible AUC is known.

    Ids follow a power law; bags hold 1 to ``hotness`` of them; dense features are
    standard normal, as log-transformed counts are; weights are uniform in [0.5, 1.5).
    A label is 1 with probability ``sigmoid(logit)``, and the logit is a sum of

    - the dense features, each times a hidden weight,
    - for each feature, the (weighted) mean over its bag of a hidden effect of the row,
    - for a few pairs of features, the product of their bags' hidden mean vectors,

    scaled so that about 27 % of the labels are 1 and the best AUC is about 0.80.

    Args:
      tables: the tables, whose ``rows`` bound the ids.
      features: the features to generate.
      dense_features: number of dense features; may be 0.
      zipf_exponent: Zipf exponent of the ids of all tables; 0 is uniform. Real data
        have 1.05 to 1.2.
      train_samples: number of samples of an epoch.
      test_samples: number of samples of the test set, drawn from its own stream.
      seed: determines samples and teacher.

    Raises:
      ValueError: if tables and features do not fit, or a number breaks its rule.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        *,
        dense_features: int = 13,
        zipf_exponent: float = 1.05,
        train_samples: int = 1_000_000,
        test_samples: int = 100_000,
        seed: int = 0,
    ):
        check_model(tables, features)
        for name, value, least in (
            ("dense_features", dense_features, 0),
            ("zipf_exponent", zipf_exponent, 0),
            ("train_samples", train_samples, 1),
            ("test_samples", test_samples, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}, must be >= {least}")
        values = dense_features + sum(feature.hotness for feature in features)
        if values > MOST_VALUES:
            raise ValueError(
                f"a sample has {values:,} ids (hotness of the features) and dense "
                f"values, must have at most {MOST_VALUES:,} in synthetic data"
            )
        self.table_rows: Mapping[str, int] = {t.name: t.rows for t in tables}
        self.features = tuple(features)
        self.dense_features = dense_features
        self.train_samples = train_samples
        self.test_samples = test_samples
        self._zipf_exponent = zipf_exponent
        self._seed = seed
        # Batches smaller than a block need the same block several times in a row.
        self._block = functools.lru_cache(maxsize=1)(self._make_block)
        self._plant_teacher()

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Returns the batch of training step ``step`` (from 0); wraps at
        ``train_samples``."""
        start = step * batch_size
        batch, _ = self._samples(_TRAIN, start, batch_size, self.train_samples)
        return batch

    def validation_batches(self, batch_size: int) -> None:
        """Returns None: one stream's samples serve as well as another's."""

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yields the whole test set once; the last batch may be shorter."""
        for batch, _ in self._test_samples(batch_size):
            yield batch

    def bayes_auc(self) -> float:
        """Returns AUC of the teacher's own logits on the test set."""
        from sklearn.metrics import roc_auc_score  # takes a second to import

        labels, logits = zip(
            *((batch.labels, logits) for batch, logits in self._test_samples(BLOCK)),
            strict=True,
        )
        return float(roc_auc_score(np.concatenate(labels), np.concatenate(logits)))

    def _test_samples(self, batch_size: int) -> Iterator[tuple[Batch, np.ndarray]]:
        for start in range(0, self.test_samples, batch_size):
            count = min(batch_size, self.test_samples - start)
            yield self._samples(_TEST, start, count, self.test_samples)

    def _samples(
        self, split: int, start: int, count: int, total: int
    ) -> tuple[Batch, np.ndarray]:
        """Returns ``count`` samples from ``start`` on, modulo ``total``, and their
        logits."""
        slices, position = [], start
        while position < start + count:
            number, offset = divmod(position % total, BLOCK)
            size = min(
                BLOCK - offset, total - position % total, start + count - position
            )
            block = self._block(split, number)
            slices.append([array[offset : offset + size] for array in block])
            position += size
        dense, labels, logits, *bags = map(np.concatenate, zip(*slices, strict=True))
        kind = ("training", "test")[split]
        batch = Batch(
            dense=dense,
            ids={f.name: bags.pop(0) for f in self.features},
            labels=labels,
            weights={f.name: bags.pop(0) for f in self.features if f.weighted},
            locate=lambda i: f"{kind} sample {(start + i) % total}",
        )
        return batch, logits

    def _make_block(self, split: int, number: int) -> tuple[np.ndarray, ...]:
        """Returns dense, labels, logits, ids of each feature, weights of each weighted
        one.

        The tuple is flat, so that blocks can be cut and joined whatever they hold.
        """
        rng = np.random.default_rng([self._seed, split, number])
        dense, ids, weights = self._draw_inputs(rng, BLOCK)
        terms = self._teacher_terms(dense, ids, weights)
        logits = self._teacher_bias + terms @ self._teacher_weights
        labels = (rng.random(BLOCK) < expit(logits)).astype(np.float32)
        return dense, labels, logits, *ids.values(), *weights.values()

    def _draw_inputs(self, rng: np.random.Generator, count: int):
        dense = rng.standard_normal((count, self.dense_features), np.float32)
        ids, weights = {}, {}
        for feature in self.features:
            shape = (count, feature.hotness)
            rows = self.table_rows[feature.table]
            bags = power_law_ids(rng.random(shape), rows, self._zipf_exponent)
            if feature.hotness > 1:
                lengths = rng.integers(1, feature.hotness, (count, 1), endpoint=True)
                bags[np.arange(feature.hotness) >= lengths] = -1
            if feature.weighted:
                uniform = rng.random(shape, np.float32) + np.float32(0.5)
                weights[feature.name] = np.where(bags >= 0, uniform, np.float32(0))
            ids[feature.name] = bags
        return dense, ids, weights

    def _plant_teacher(self) -> None:
        """Scales the teacher's terms on samples that belong to no split."""
        keys = np.random.default_rng([self._seed]).integers(
            2**64, size=len(self.table_rows), dtype=np.uint64
        )
        self._table_keys = dict(zip(self.table_rows, keys, strict=True))
        rng = np.random.default_rng([self._seed, _CALIBRATION])
        terms = self._teacher_terms(*self._draw_inputs(rng, CALIBRATION_SAMPLES))
        pairs = min(_PAIRS, len(self.features) - 1)
        scales = np.concatenate(
            [
                np.sqrt(share / max(count, 1)) * rng.choice([-1.0, 1.0], count)
                for share, count in (
                    (_DENSE_SHARE, self.dense_features),
                    (_ROW_SHARE, len(self.features)),
                    (_PAIR_SHARE, pairs),
                )
            ]
        )
        # A table of one row has a constant term, whose rounding must not be scaled up.
        scales /= np.maximum(terms.std(axis=0), 1e-3)
        logits = terms @ scales
        self._teacher_weights = scales * (_LOGIT_STD / max(logits.std(), 1e-3))
        self._teacher_bias = _LOGIT_MEAN - (terms @ self._teacher_weights).mean()

    def _teacher_terms(
        self,
        dense: np.ndarray,
        ids: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        """Returns ``[samples, terms]`` terms of which the logit is a linear
        function."""
        pooled = [
            self._pooled_effects(f.table, ids[f.name], weights.get(f.name))
            for f in self.features
        ]
        neighbours = itertools.islice(itertools.pairwise(pooled), _PAIRS)
        products = [(a[:, 1:] * b[:, 1:]).sum(axis=1) for a, b in neighbours]
        return np.column_stack([dense, *(p[:, 0] for p in pooled), *products])

    def _pooled_effects(
        self, table: str, ids: np.ndarray, weights: np.ndarray | None
    ) -> np.ndarray:
        """Returns ``[samples, 4]`` mean over each bag of four hidden normal values per
        row."""
        counters = ids.astype(np.uint64) * GOLDEN_GAMMA + self._table_keys[table]
        quarters = splitmix64(counters).view(np.uint16).reshape(*ids.shape, 4)
        if weights is None:
            weights = (ids >= 0).astype(np.float32)
        sums = np.einsum("sh,she->se", weights, _NORMALS[quarters])
        return sums / weights.sum(axis=1, keepdims=True)


class SyntheticSource:
    """See ``Source``; the config declares tables and features."""

    def __init__(self, section: SyntheticConfig, embedding: EmbeddingConfig):
        self._section, self._embedding = section, embedding

    def open(self, seed: int) -> tuple[SyntheticClicks, Description]:
        """Opens the dataset, which has a seed of its own."""
        table_rows, features = self._embedding.declared("synthetic data needs it")
        section = self._section
        with config_error_at("embedding"):
            # Of dynamic tables these are as many rows as unique ids are drawn.
            tables = [
                TableSpec(name, rows, self._embedding.dim)
                for name, rows in table_rows.items()
            ]
            dataset = SyntheticClicks(
                tables, features, **section.model_dump(exclude={"kind"})
            )
        return dataset, Description.of(
            dataset,
            best_auc=dataset.bayes_auc,
            zipf_exponent=section.zipf_exponent,
            seed=section.seed,
            order=section.model_dump(mode="json"),
        )

    def absent(self) -> None:
        return None
