"""Datasets, checks of their batches, and reading ahead.

- ``source``: what the ``data`` section of a config opens; ``synthetic``, ``movielens``,
  ``prepared``, ``windows`` and ``own_dataset`` are the sources.
- ``batch``, ``jagged``, ``checks``, ``records``: samples as arrays, sequences without
  padding, their rules, and their form on disk, on hosts and on devices.
- ``column_values``: what a batch's values look like.
- ``leave_one_out``: users' histories, whose last events are held out.
- ``view``, ``hot_batches``, ``pipeline``: batches in another order, and ahead of time.
- ``negatives``: items drawn at random, beside the samples of a dataset.
- ``bag_counts``: how often rows are looked up, for statistics; ``row_order``
  numbers them by that.
- ``manifest``, ``hashed_file``, ``table_values``: what is known of a folder of prepared
  data.
- ``prepare/``: makes such folders from raw files.
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
from embark_jax.data.leave_one_out import LeaveOneOut as LeaveOneOut
from embark_jax.data.movielens import MovieLens100K as MovieLens100K
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
