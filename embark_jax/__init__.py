"""embark_jax: sharded embedding tables and recommendation models in JAX.

Tables, features and a fleet make a plan; the plan makes an ``EmbeddingCollection``;
with a Flax model and two optimizers that makes a ``Trainer``.
"""

from embark_kernels import SGD as SGD
from embark_kernels import Adagrad as Adagrad
from embark_kernels import LazyAdam as LazyAdam
from embark_kernels import RowwiseAdagrad as RowwiseAdagrad

from embark_jax import fleet as fleets
from embark_jax import models as models
from embark_jax import simulator as simulator
from embark_jax.config import ExperimentConfig as ExperimentConfig
from embark_jax.config_io import load as load_config
from embark_jax.data import Batch as Batch
from embark_jax.data import BatchChecker as BatchChecker
from embark_jax.data import MovieLens100K as MovieLens100K
from embark_jax.data import SyntheticClicks as SyntheticClicks
from embark_jax.dataset import sample_accesses as sample_accesses
from embark_jax.embedding.collection import EmbeddingCollection as EmbeddingCollection
from embark_jax.embedding.logical import export_table as export_table
from embark_jax.fleet import Fleet as Fleet
from embark_jax.planner import ForcedPlacement as ForcedPlacement
from embark_jax.planner import Plan as Plan
from embark_jax.planner import Statistics as Statistics
from embark_jax.planner import Wire as Wire
from embark_jax.planner import figures as figures
from embark_jax.planner import plan as plan
from embark_jax.planner import read_table_list as read_table_list
from embark_jax.tables import FeatureSpec as FeatureSpec
from embark_jax.tables import TableSpec as TableSpec
from embark_jax.train.metrics import evaluate as evaluate
from embark_jax.train.trainer import Trainer as Trainer
