"""What the ``data`` section of a config opens: a dataset, and what is known of it.

A source is a class such as ``OwnSource``, and a line of ``config.SOURCES``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from embark_jax._base.config import ConfigError
from embark_jax.config import EmbeddingConfig, OwnDataConfig, call_named
from embark_jax.data.dataset import Dataset
from embark_jax.data.table_values import TableValues
from embark_jax.plans.tables import FeatureSpec


@dataclasses.dataclass(frozen=True)
class Description:
    """What a run must know of its data but the samples.

    Attributes:
      table_rows: number of rows of each table.
      features: the features.
      dense_features: columns of numbers in each sample.
      labels: names of the labels, () for a single one; None if they are not known.
      best_auc: computes the best AUC that any model can reach on the test set; None if
        it is not known.
      zipf_exponent: Zipf exponent of the ids; 0 if it is not known.
      seed: seed of the samples themselves, if they are drawn.
      order: values that determine, with the run's seed, which samples a step has; JSON.
      missing_dense: for each dense column, how many values are missing, and 0 instead.
      values: what the rows of its tables stand for; None if the data do not say.
      save_encoding: writes into a run's folder what makes samples of raw rows; None if
        the data were not a user's own files.
    """

    table_rows: Mapping[str, int]
    features: Sequence[FeatureSpec]
    dense_features: int
    labels: tuple[str, ...] | None = ()
    best_auc: Callable[[], float] | None = None
    zipf_exponent: float = 0.0
    seed: int | None = None
    order: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    missing_dense: Mapping[str, int] = dataclasses.field(default_factory=dict)
    values: TableValues | None = None
    save_encoding: Callable[[Path], None] | None = None

    def rows_of_values(self, table: str) -> range:
        """Returns the rows of a table that stand for values: not those of missing and
        of rare ones, which prepared data have."""
        first = 0 if self.values is None else self.values.manifest.tables[table].first
        return range(first, self.table_rows[table])

    @classmethod
    def of(cls, dataset: Dataset, **facts: Any) -> Description:
        """Describes a dataset that is there; ``facts`` are what it does not say."""
        return cls(
            dataset.table_rows, dataset.features, dataset.dense_features, **facts
        )


class Source(Protocol):
    """Data that a config names.

    Args:
      section: the section ``data``, of the source's own class.
      embedding: the section ``embedding``, which may declare tables and features.
    """

    def __init__(self, section: Any, embedding: EmbeddingConfig): ...

    def open(self, seed: int) -> tuple[Dataset, Description]:
        """Opens the dataset; ``seed`` determines the order of its training samples.

        Raises:
          ConfigError: if the config does not fit the data.
          DataError: if the data are missing or damaged.
        """
        ...

    def absent(self) -> Description | None:
        """Describes data that are not on this machine, for a plan; None if they are.

        Raises:
          ConfigError: if the config does not say enough of them.
        """
        ...


class OwnSource:
    """A user's own dataset, which the config names: nothing is known but what a
    ``Dataset`` says."""

    def __init__(self, section: OwnDataConfig, embedding: EmbeddingConfig):
        self._section = section

    def open(self, seed: int) -> tuple[Dataset, Description]:
        kind = self._section.kind
        dataset = call_named(kind, **self._section.options, seed=seed)
        members = [name for name in vars(Dataset) if not name.startswith("_")]
        if missing := [name for name in members if not hasattr(dataset, name)]:
            raise ConfigError(
                f"{kind}: has no {', '.join(missing)}; data.Dataset says what a "
                "dataset must have"
            )
        order = self._section.model_dump(mode="json", exclude={"path"})
        return dataset, Description.of(dataset, labels=None, order=order)

    def absent(self) -> None:
        return None
