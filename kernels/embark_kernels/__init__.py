"""Kernels for embedding tables, for GPU and CPU. Knows nothing of embark_jax."""

from embark_kernels._implementation import Implementation as Implementation
from embark_kernels._implementation import availability as availability
from embark_kernels._implementation import choose as choose
from embark_kernels.config import LookupConfig as LookupConfig
from embark_kernels.config import UpdateConfig as UpdateConfig
from embark_kernels.grouping import Buckets as Buckets
from embark_kernels.grouping import RowGroups as RowGroups
from embark_kernels.grouping import Unique as Unique
from embark_kernels.grouping import bucket_by_owner as bucket_by_owner
from embark_kernels.grouping import group_rows as group_rows
from embark_kernels.grouping import group_targets as group_targets
from embark_kernels.grouping import sort_positions as sort_positions
from embark_kernels.grouping import unique as unique
from embark_kernels.lookup import bag_offsets as bag_offsets
from embark_kernels.lookup import pooled_lookup as pooled_lookup
from embark_kernels.lookup import sum_bags as sum_bags
from embark_kernels.optimizers import SGD as SGD
from embark_kernels.optimizers import Adagrad as Adagrad
from embark_kernels.optimizers import LazyAdam as LazyAdam
from embark_kernels.optimizers import RowOptimizer as RowOptimizer
from embark_kernels.optimizers import RowwiseAdagrad as RowwiseAdagrad
from embark_kernels.update import init_states as init_states
from embark_kernels.update import sum_groups as sum_groups
from embark_kernels.update import update_from_bags as update_from_bags
from embark_kernels.update import update_rows as update_rows
