"""The section ``data`` of a config, and the registry of sources of samples.

An entry is a dotted path, resolved when it is used: configs are read without the code
that reads data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

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
    """A folder that ``embark data prepare window=…``, or ``yambda``, has cut into
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
    PreparedConfig: "embark_jax.data.prepared:PreparedSource",
    WindowsConfig: "embark_jax.data.windows:WindowsSource",
    OwnDataConfig: "embark_jax.data.source:OwnSource",
}
"""The registry of sources: the section of each, and the ``data.Source`` that opens
it."""
if TYPE_CHECKING:
    DataConfig = SyntheticConfig | PreparedConfig | WindowsConfig | OwnDataConfig
else:
    DataConfig = one_of(SOURCES)
