"""Experiment configs: their schema, section by section."""

from embark_jax.config.data import SOURCES as SOURCES
from embark_jax.config.data import OwnDataConfig as OwnDataConfig
from embark_jax.config.data import PreparedConfig as PreparedConfig
from embark_jax.config.data import SyntheticConfig as SyntheticConfig
from embark_jax.config.data import WindowsConfig as WindowsConfig
from embark_jax.config.embedding import EmbeddingConfig as EmbeddingConfig
from embark_jax.config.embedding import FeatureConfig as FeatureConfig
from embark_jax.config.embedding import TableConfig as TableConfig
from embark_jax.config.models import ModelConfig as ModelConfig
from embark_jax.config.models import NoModelConfig as NoModelConfig
from embark_jax.config.models import OwnModelConfig as OwnModelConfig
from embark_jax.config.models import items_of as items_of
from embark_jax.config.models import negatives_of as negatives_of
from embark_jax.config.models import tasks_of as tasks_of
from embark_jax.config.optimizers import DENSE_RULES as DENSE_RULES
from embark_jax.config.optimizers import ROW_RULES as ROW_RULES
from embark_jax.config.optimizers import AnyScheduleConfig as AnyScheduleConfig
from embark_jax.config.optimizers import DenseOptimizerConfig as DenseOptimizerConfig
from embark_jax.config.optimizers import (
    EmbeddingOptimizerConfig as EmbeddingOptimizerConfig,
)
from embark_jax.config.optimizers import NamedOptimizerConfig as NamedOptimizerConfig
from embark_jax.config.own import call_named as call_named
from embark_jax.config.own import import_named as import_named
from embark_jax.config.own import trusted as trusted
from embark_jax.config.schema import EarlyStoppingConfig as EarlyStoppingConfig
from embark_jax.config.schema import ExperimentConfig as ExperimentConfig
from embark_jax.config.schema import MeshConfig as MeshConfig
from embark_jax.config.schema import OwnMetricConfig as OwnMetricConfig
from embark_jax.config.schema import PlateauConfig as PlateauConfig
from embark_jax.config.schema import RetrievalConfig as RetrievalConfig
from embark_jax.config.schema import SearchedConfig as SearchedConfig
from embark_jax.config.schema import TrainConfig as TrainConfig
