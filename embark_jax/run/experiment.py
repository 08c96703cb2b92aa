"""Makes the objects of a run from its config."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
from embark_kernels import availability
from flax import nnx
from jax.sharding import Mesh

from embark_jax import models
from embark_jax._base.config import ConfigError, config_error_at, nearest
from embark_jax.config import (
    ExperimentConfig,
    RetrievalConfig,
    TrainConfig,
    import_named,
)
from embark_jax.data import (
    WINDOW_BATCHES,
    BatchChecker,
    Dataset,
    Description,
    FromStep,
    WindowsData,
)
from embark_jax.embedding.collection import EmbeddingCollection
from embark_jax.launch.agreement import from_process_0
from embark_jax.metrics.pointwise import OF_PROBABILITIES
from embark_jax.models.function import Model
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.plan import Plan
from embark_jax.plans.tables import FeatureSpec, TableSpec
from embark_jax.run.dataset import (
    ModelData,
    batch_checker,
    check_batch_size,
    check_groups,
    check_windows,
    hot_rows,
    in_training_order,
    merged_model,
    read_dataset,
    source_of,
    with_negatives,
)
from embark_jax.run.folder import facts_of_model
from embark_jax.run.optimizers import build_loss, build_optimizers
from embark_jax.run.planning import (
    Planned,
    make_plan,
    read_plan,
    why_plain_xla,
    wire,
)
from embark_jax.statistics.accesses import NO_STATISTICS, Statistics
from embark_jax.train.state import Optimizers
from embark_jax.train.trainer import Trainer

DEFAULT_STEPS = 1000


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The experiment that a config describes, before any device is used.

    Attributes:
      config: the config.
      description: what is known of the dataset.
      tables, features: tables and features of the model.
      plan: plan of the tables.
      dataset: dataset with its samples.
      first_step: number of steps of the run that this one continues, whose steps it
        goes on counting.
    """

    config: ExperimentConfig
    description: Description
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    plan: Plan
    dataset: Dataset
    first_step: int = 0

    @property
    def steps(self) -> int:
        """Number of the last step of the whole run."""
        options = self.config.train
        if self.windows is not None:
            last = self.windows.end
            return min(last, self.first_step + (options.steps or last))
        if options.epochs is None:
            return self.first_step + (options.steps or DEFAULT_STEPS)
        samples = int(options.epochs * self.dataset.train_samples)
        return self.first_step + max(1, samples // options.batch_size)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint says of its run, and is compared in by the tables of
        ``_base/agreement.py``; plan and mesh are no part of it."""
        config, values = self.config, self.description.values
        train: dict[str, Any] = {"batch_size": config.train.batch_size}
        if self.first_step:
            train["first_step"] = self.first_step
        if config.train.hot_batches:
            train["hot_rows"] = hot_rows(self.plan)
            train["window_batches"] = WINDOW_BATCHES
        if self.windows is not None:
            train["epochs"] = config.train.epochs
        return {
            "data_seed": self.description.seed,
            "tables": {t.name: t.shape for t in self.tables},
            "features": {f.name: f.reading for f in self.features},
            "dense_features": self.dataset.dense_features,
            **facts_of_model(config),
            "embedding_optimizer": config.embedding.optimizer.kind,
            "table_optimizers": _other_kinds(config),
            "dense_optimizer": config.dense_optimizer.kind,
            "values": values and values.manifest.meaning(),
            "data": self.description.order,
            "train": train,
        }

    @property
    def windows(self) -> WindowsData | None:
        """The data, if they are in time windows."""
        return self.dataset if isinstance(self.dataset, WindowsData) else None

    @property
    def training_data(self) -> Dataset:
        """The dataset, with its training samples in the configured order."""
        if self.windows is not None:
            return self.windows
        dataset = in_training_order(self.dataset, self.config, self.plan)
        batch_size = self.config.train.batch_size
        return FromStep(dataset, self.first_step, batch_size)

    def optimizers(self, factor: float = 1.0) -> Optimizers:
        """Returns the optimizers, with this factor of all learning rates."""
        return build_optimizers(self.config, self.steps, factor)

    def checker(self) -> BatchChecker:
        """Returns the checker of the dataset's batches against the tables."""
        return batch_checker(self.config, self.dataset, self.tables, self.features)

    def collection(
        self, mesh: Mesh, implementation: str | None = None
    ) -> EmbeddingCollection:
        """Returns the embedding tables on a mesh; None takes the implementation of
        kernels that the config says.

        Raises:
          ConfigError: if the kernels cannot run here.
        """
        with config_error_at("embedding.kernels"):
            return EmbeddingCollection(
                self.plan,
                mesh,
                wire=wire(self.config),
                implementation=implementation or _implementation(self.config),
            )

    def model(self, embeddings: EmbeddingCollection) -> Model:
        """Returns the model with its initial parameters.

        Raises:
          ConfigError: if it does not suit the embeddings, or what the config measures.
        """
        config = self.config
        # Not len(), which a range of all 64-bit keys is too long for.
        ranges = {
            f.name: self.description.rows_of_values(f.table) for f in self.features
        }
        values = {name: rows.stop - rows.start for name, rows in ranges.items()}
        with config_error_at("model"):
            model = models.build(
                config.model,
                embeddings.output_shapes,
                self.description.dense_features,
                nnx.Rngs(config.seed),
                values,
            )
        if isinstance(model, RetrievalModel):
            _check_deciding(config.train)
        if config.train.retrieval is not None:
            _check_retrieval(config.train.retrieval, model, self)
        return model

    def trainer(self) -> Trainer:
        """Returns the model with its initial state on the devices of the plan's mesh.

        Raises:
          ConfigError: if there are too few devices; as ``collection`` and ``model``.
        """
        config = self.config
        with config_error_at("mesh"):
            mesh = self.plan.make_mesh()
        embeddings = self.collection(mesh)
        model, optimizers = self.model(embeddings), self.optimizers()
        with config_error_at("train"):
            return Trainer(
                model,
                embeddings,
                dense_optimizer=optimizers.dense,
                embedding_optimizer=optimizers.rows,
                micro_batches=config.train.micro_batches,
                dense=config.train.dense,
                dense_wire=config.train.dense_wire,
                loss=build_loss(config),
                seed=config.seed,
                on_bad_id=config.embedding.on_bad_id,
                scratch=config.embedding.scratch,
            )


def _check_retrieval(config: RetrievalConfig, model: Model, setup: Experiment) -> None:
    """Raises ``ConfigError`` if evaluations cannot search all items."""
    if not isinstance(model, RetrievalModel) or model.item_features != (model.item,):
        raise ConfigError(
            "train.retrieval: must be left out, as the model makes no vector of an "
            "item's id alone; ej.ItemIndex takes any vectors"
        )
    tables = {feature.name: feature.table for feature in setup.features}
    if config.exclude is not None and config.exclude not in tables:
        raise ConfigError(f"train.retrieval.exclude: {nearest(config.exclude, tables)}")
    table, values = tables[model.item], setup.description.values
    if values is not None and values.manifest.tables[table].is_shared:
        raise ConfigError(
            f"train.retrieval: must be left out, as table {table!r} is hashed: several "
            "items share a row, so that nobody knows which one was found; prepare the "
            "data without hashing it"
        )


def of_the_event(model: RetrievalModel, data: Description) -> list[str]:
    """Returns what a user's vector is made of that is of the event whose item is to be
    found, as histories have it: it may tell the item."""
    columns = data.values and data.values.manifest.columns
    history = columns.history if columns else None
    return (
        [n for n in history.columns if n not in model.item_features] if history else []
    )


def _check_deciding(config: TrainConfig) -> None:
    """Raises ``ConfigError`` if a metric of probabilities decides about a model that
    gives none."""
    for key, section in (
        ("early_stopping", config.early_stopping),
        ("plateau", config.plateau),
    ):
        if section is not None and section.metric in OF_PROBABILITIES:
            raise ConfigError(
                f"train.{key}.metric: is {section.metric}, must be hr@10, ndcg@10 or "
                "auc: the scores of this model order items, and are no probabilities"
            )


def _other_kinds(config: ExperimentConfig) -> dict[str, Any] | None:
    """Returns the optimizers of the tables that have another kind than most."""
    embedding = config.embedding
    kinds = {name: embedding.optimizer_of(name).kind for name in embedding.tables}
    return {n: k for n, k in kinds.items() if k != embedding.optimizer.kind} or None


def build(
    config: ExperimentConfig,
    plan_file: Path | None = None,
    first_step: int = 0,
) -> Experiment:
    """Reads the dataset, merges its tables with the config's, and plans.

    Args:
      config: experiment config.
      plan_file: plan in JSON that is used as it is, whatever placements and capacity
        slack the config has; None makes a plan.
      first_step: number of steps of the run that this one goes on from.

    Raises:
      ConfigError: if the config does not fit the dataset, its plan is impossible, or
        the given plan is damaged or made for something else.
      DataError: if the dataset is missing or damaged.
    """
    dataset, description, tables, features = _checked_dataset(config, first_step)
    if plan_file is None:
        planned = make_plan(config, description, tables, features).plan
    else:
        planned = read_plan(plan_file, config, tables, features)
    if jax.process_count() > 1:  # hosts may differ, and their plans with them
        planned = Plan.from_json(from_process_0(planned.to_json()))
    in_training_order(dataset, config, planned)  # raises now, not when training begins
    return Experiment(
        config, description, tables, features, planned, dataset, first_step
    )


def plan_model(
    config: ExperimentConfig,
    statistics: Statistics = NO_STATISTICS,
    advise: bool = False,
) -> Planned:
    """Plans like ``build``, also where the data are not there and the config says
    enough of them.

    Args:
      config: experiment config.
      statistics: statistics of a sample of the data.
      advise: whether to try what would make the plan faster.

    Raises:
      ConfigError: if the config says too little, does not fit the dataset, or its plan
        is impossible.
      DataError: if the dataset is damaged.
    """
    if not statistics.samples:
        statistics = config.embedding.mean_lengths()
    if (absent := source_of(config).absent()) is not None:
        description = with_negatives(config, absent)
        tables, features = merged_model(config, description)
        planned = make_plan(config, description, tables, features, statistics, advise)
        return planned._replace(without_data=True)
    dataset, description, tables, features = _checked_dataset(config)
    planned = make_plan(config, description, tables, features, statistics, advise)
    in_training_order(dataset, config, planned.plan)
    return planned


def _checked_dataset(config: ExperimentConfig, first_step: int = 0) -> ModelData:
    """Reads the dataset as ``read_dataset`` does; raises ``ConfigError`` also if a run
    cannot train on it as the config says."""
    found = read_dataset(config)
    dataset = found[0]
    check_batch_size(config, dataset)
    if isinstance(dataset, WindowsData):
        check_windows(config)
        size, passes = config.train.batch_size, config.train.epochs or 1.0
        dataset.schedule(size, passes, first_step)
    for key in ("early_stopping", "plateau"):
        if getattr(config.train, key) and dataset.validation_batches(1) is None:
            raise ConfigError(
                f"train.{key}: the data have no validation set; prepare them with one, "
                "or leave it out"
            )
    for name, own in config.train.metrics.items():
        import_named(own.function)  # now, not at the first evaluation
        if own.groups is not None:
            check_groups(found[3], own.groups, f"train.metrics.{name}.groups:")
    if config.train.eval_every:
        held_out = dataset.validation_batches(1) or dataset.test_batches(1)
        if next(held_out, None) is None:
            raise ConfigError(
                "train.eval_every: the data have neither a validation nor a test set; "
                "leave it out"
            )
    return found


def _implementation(config: ExperimentConfig) -> str | None:
    """Returns the implementation of kernels, as a collection takes it."""
    kernels = config.embedding.kernels
    if kernels == "auto":
        # None, not the kernels by name, which cannot handle tables of every width.
        return "xla" if why_plain_xla() else None
    if reason := availability()[kernels]:
        raise ValueError(f"{kernels} {reason}; choose auto or xla")
    return kernels
