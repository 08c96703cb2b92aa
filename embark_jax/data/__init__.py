"""Datasets, checks of their batches, and reading ahead; no queries.

- ``dataset``, ``source``: what a dataset is, and what the ``data`` section of a config
  opens; ``synthetic``, ``prepared`` and ``windows`` are sources.
- ``batch``, ``layout``, ``jagged``, ``checks``: samples as arrays and as matrices, in
  one form from files to devices; sequences without padding; their rules.
- ``hot_batches``, ``negatives``, ``pipeline``: batches in another order, with items
  drawn at random, and ahead of time.
- ``row_order``: numbers rows by how often they are looked up.
- ``manifest``, ``hashed_file``, ``table_values``, ``columns``, ``numbers``,
  ``vocabulary``, ``encoding``: what is known of a folder of prepared data, which the
  room ``prepare`` makes from raw files.
"""

from embark_jax.data.batch import Batch as Batch
from embark_jax.data.batch import DataError as DataError
from embark_jax.data.batch import feature_statistics as feature_statistics
from embark_jax.data.checks import BatchChecker as BatchChecker
from embark_jax.data.dataset import Dataset as Dataset
from embark_jax.data.dataset import FromStep as FromStep
from embark_jax.data.download import fetch_movielens_100k as fetch_movielens_100k
from embark_jax.data.download import movielens_100k_folder as movielens_100k_folder
from embark_jax.data.hot_batches import WINDOW_BATCHES as WINDOW_BATCHES
from embark_jax.data.hot_batches import HotBatches as HotBatches
from embark_jax.data.jagged import Jagged as Jagged
from embark_jax.data.negatives import WithUniformNegatives as WithUniformNegatives
from embark_jax.data.negatives import uniform_negatives as uniform_negatives
from embark_jax.data.pipeline import prefetch as prefetch
from embark_jax.data.prepared import PreparedData as PreparedData
from embark_jax.data.row_order import by_frequency as by_frequency
from embark_jax.data.source import Description as Description
from embark_jax.data.source import Source as Source
from embark_jax.data.synthetic import SyntheticClicks as SyntheticClicks
from embark_jax.data.table_values import TableValues as TableValues
from embark_jax.data.windows import WindowsData as WindowsData
