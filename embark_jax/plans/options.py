"""The values that options take, set once for plans, configs, data, runs and help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from embark_kernels.optimizers import ROW_OPTIMIZERS

from embark_jax.plans.clusters import ClusterName as ClusterName
from embark_jax.plans.clusters import ExchangeName as ExchangeName
from embark_jax.plans.clusters import Kernels as Kernels

WireFormat = Literal["float32", "bfloat16"]
"""Number format in which rows or gradients travel between devices."""
Pooling = Literal["sum", "mean", "none"]
Dtype = Literal["float32", "bfloat16", "float16"]
"""Number format in which rows are stored."""
Initializer = Literal["uniform", "normal"]
Tier = Literal["device", "host", "disk", "auto"]
"""Where all rows of a table have room; "auto" leaves it to the planner."""
Evict = Literal["lru", "lfu"]
"""Rows that leave slots first: asked for longest ago, or by the fewest batches."""
Evicted = Literal["host", "disk", "discard"]
"""Where a dynamic table's rows go that leave slots."""
OnBadId = Literal["error", "drop", "hash"]
"""What becomes of an id outside its table."""
OnBadLine = Literal["error", "skip"]
"""What becomes of a line of a raw file that breaks a rule: it ends the reading, or is
left out and counted."""
SPLITS_BY = ("time", "random", "user", "leave-one-out", "column=NAME", "none")
"""Samples that are held out: the latest, random ones, those of random users, the last
two of each user, those that a column says, or none."""
DenseParallelism = Literal["replicated", "zero1", "tensor"]
"""Layout of the dense layers on the devices:

- replicated: every device holds all parameters and all of the optimizer state.
- zero1: as replicated, but each device holds and updates its part of the optimizer
  state: gradients are reduce-scattered, new parameters all-gathered (ZeRO stage 1,
  https://arxiv.org/abs/1910.02054).
- tensor: the devices of a node hold parts of the layers, split alternately by columns
  and by rows, and compute them for all samples of their node (Megatron-LM,
  https://arxiv.org/abs/1909.08053).

An array with no axis that divides by the devices stays replicated.
"""
RECIPES = {
    "criteo-kaggle": "embark_jax.prepare.criteo:kaggle",
    "criteo-1tb": "embark_jax.prepare.criteo:terabyte",
    "criteo-1tb-multi-hot": "embark_jax.prepare.criteo:terabyte_multi_hot",
    "avazu": "embark_jax.prepare.avazu:avazu",
    "taobao": "embark_jax.prepare.taobao:taobao",
    "yambda": "embark_jax.prepare.yambda:yambda",
}
"""The registry of data sets that ``embark data prepare`` reads: a function that makes a
recipe of the folder that users download."""
OWN_FILES = {
    "csv": "embark_jax.prepare.own_files:csv",
    "parquet": "embark_jax.prepare.own_files:parquet",
    "movielens-100k": "embark_jax.prepare.movielens:movielens_100k",
    "movielens-100k-next": "embark_jax.prepare.movielens:movielens_100k",
}
"""The same for files whose columns the user describes."""
KNOWN_COLUMNS = {
    "movielens-100k": "embark_jax.prepare.movielens:COLUMNS",
    "movielens-100k-next": "embark_jax.prepare.movielens:NEXT_COLUMNS",
}
"""What is said of these columns before the user says more."""
DENSE_OPTIMIZERS = {
    "sgd": {"weight_decay": 0.0},
    "adagrad": {"eps": 1e-8, "weight_decay": 0.0},
    "adam": {"eps": 1e-8, "weight_decay": 0.0},
}
"""The optimizers of dense layers that have a name of their own, with the defaults of
their parameters."""
if TYPE_CHECKING:
    RowOptimizerName = str
else:
    RowOptimizerName = Literal[tuple(ROW_OPTIMIZERS)]
