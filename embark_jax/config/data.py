"""The section ``data`` of a config, and the registry of sources of samples.

An entry is a dotted path, resolved when it is used: configs are read without the code
that reads data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from embark_jax._base.config import Config
from embark_jax._base.object_store import AnyPath, LocalPath
from embark_jax.config.own import OwnConfig, one_of


class SyntheticConfig(Config):
    """Synthetic data: power-law clicks with labels from a teacher; tables and features
    come from ``embedding``."""

    kind: Literal["synthetic"] = "synthetic"
    dense_features: NonNegativeInt = 13
    """Columns of numbers in each sample; may be 0."""
    zipf_exponent: NonNegativeFloat = 1.05
    """Exponent of the power law of ids; 0 draws all rows equally often."""
    train_samples: PositiveInt = 1_000_000
    """Samples of an epoch."""
    test_samples: PositiveInt = 100_000
    """Samples of the test set."""
    seed: NonNegativeInt = 0
    """Seed of samples and teacher, separate from the run's seed, so that runs of a
    search over `seed` differ only in the initial parameters."""


class MovieLens100KConfig(Config):
    """MovieLens-100k; ``embark data movielens-100k`` fetches it into ``path``."""

    kind: Literal["movielens_100k"] = "movielens_100k"
    path: LocalPath | None = None
    """Folder of the three ml-100k files; None is the cache that ``embark data``
    fills."""
    earlier_items: NonNegativeInt = 0
    """Length of the sequence of films that the user rated before; 0 leaves it out."""
    labels: Mapping[str, Annotated[int, Field(ge=1, le=5)]] = {}
    """Several labels, each with the stars from which on it is 1; empty means one label,
    from 4 stars on."""
    split: Literal["random", "leave_one_out"] = "random"
    """``random``: ratings split 8:1:1. ``leave_one_out``: the films of each user in
    order, the last one for the test, the one before it for validation; features are
    item and earlier_items alone, and each label is 1."""
    stride: PositiveInt = 1
    """With ``leave_one_out``, every so many films of a user make a training sample. One
    more than ``earlier_items`` trains on each film once with
    ``model.every_position``."""

    @model_validator(mode="after")
    def _agree(self):
        if self.split == "leave_one_out" and (self.labels or not self.earlier_items):
            raise ValueError(
                "split is leave_one_out, which needs earlier_items, and no labels: set "
                "earlier_items to 50, say, and leave labels out"
            )
        if self.split == "random" and self.stride > 1:
            raise ValueError(f"stride is {self.stride}, must be 1 with a random split")
        return self


class PreparedConfig(Config):
    """A folder that ``embark data prepare`` made."""

    kind: Literal["prepared"] = "prepared"
    path: AnyPath
    """The folder, with its manifest; one in a bucket is copied to this machine."""
    dense_features: NonNegativeInt | None = None
    """Columns of numbers in each sample, which data that are there say themselves:
    `embark plan` needs it where they are not."""


class WindowsConfig(Config):
    """Prepared data in time windows. The model is evaluated on each window before it is
    trained on it."""

    kind: Literal["windows"] = "windows"
    path: LocalPath
    """A folder that ``embark data prepare --window``, or ``yambda``, has cut into
    windows."""
    shuffle: bool = True
    """Whether the samples of a window are shuffled; otherwise they come in the order of
    the files."""
    dense_features: NonNegativeInt | None = None
    """Columns of numbers in each sample; see ``PreparedConfig``."""


class OwnDataConfig(OwnConfig):
    """Your own data. The object that ``kind`` names is called as ``Name(**options,
    seed=seed)`` and returns a ``data.Dataset``."""


SOURCES: dict[type[Config], str] = {
    SyntheticConfig: "embark_jax.data.synthetic:SyntheticSource",
    MovieLens100KConfig: "embark_jax.prepare.movielens:MovieLensSource",
    PreparedConfig: "embark_jax.data.prepared:PreparedSource",
    WindowsConfig: "embark_jax.data.windows:WindowsSource",
    OwnDataConfig: "embark_jax.data.source:OwnSource",
}
"""The registry of sources: the section of each, and the ``data.Source`` that opens
it."""
if TYPE_CHECKING:
    DataConfig = (
        SyntheticConfig
        | MovieLens100KConfig
        | PreparedConfig
        | WindowsConfig
        | OwnDataConfig
    )
else:
    DataConfig = one_of(SOURCES)
