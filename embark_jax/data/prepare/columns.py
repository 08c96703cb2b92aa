"""What the columns of one's own files are: a YAML file, or options of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from embark_jax.config import Config, nearest
from embark_jax.data.batch import DataError

LIST_SEPARATOR = "|"
"""Between the values of a list in text, unless another is named."""


class NumberColumn(Config):
    """A column of numbers. What is fitted is fitted to the training samples."""

    transform: Literal["none", "log", "standardize", "quantiles"] = "none"
    """``log`` is log(1 + x), with 0 for numbers below 0. ``standardize`` gives mean 0
    and standard deviation 1. ``quantiles`` makes a feature of it, whose categories are
    ranges with equally many samples."""
    quantiles: Annotated[int, Field(ge=2)] = 32
    """Ranges of that transform; fewer where many samples have the same number."""
    missing: Literal["zero", "mean"] = "zero"
    """What a missing number becomes after the transform. With ``quantiles`` missing
    numbers are a category of their own."""


class CategoryColumn(Config):
    """A column of categories, integers or text, alone or in lists."""

    table: str | None = None
    """That it reads, with other columns of the same values; None is its own."""
    separator: str | None = None
    """Between the values of a list in text; None is one value. Parquet has lists of
    its own."""
    sequence: bool = False
    """Whether the order of a list counts, the latest last; else its embeddings are
    averaged."""
    longest: PositiveInt | None = None
    """Longer lists are cut: sequences keep their last values, others their first."""


class Columns(Config):
    """What the columns are."""

    label: str = "label"
    """A number from 0 to 1."""
    positive_from: float | None = None
    """The label is any number, and becomes 1 from this one on, and else 0."""
    dense: Mapping[str, NumberColumn] = {}
    features: Mapping[str, CategoryColumn] = {}
    others: bool = True
    """Whether columns that are named nowhere are features, too, of one value each; in
    Parquet also of lists."""
    ignore: tuple[str, ...] = ()
    """Columns that are not used."""
    time: str | None = None
    """A number, or a date such as 2024-05-31 12:30:00, of each sample: the latest are
    held out."""
    split: str | None = None
    """A column that says train, validation or test."""
    separator: str | None = None
    """Between the columns of text; None is a tab in .tsv files, else a comma."""

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that are used."""
        others = filter(None, (self.time, self.split))
        return tuple(dict.fromkeys((self.label, *self.inputs, *others)))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that a prediction is made from."""
        return *self.dense, *self.features

    def completed(self, names: Sequence[str], where: str) -> Columns:
        """With all features, for a file of these columns.

        Raises:
          DataError: if a column is not there or is two things at once, or none is left
            for features.
        """
        check_there((*self.named, *self.ignore), names, where)
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{where}: columns {', '.join(repeated)} are used twice")
        if twice := sorted(self.dense.keys() & self.features.keys()):
            raise DataError(
                f"{where}: column {twice[0]!r} is dense and a feature, must be one"
            )
        used = {*self.named, *self.ignore}
        others = [name for name in names if self.others and name not in used]
        features = {**self.features, **dict.fromkeys(others, CategoryColumn())}
        ranges = [c for c in self.dense.values() if c.transform == "quantiles"]
        if not features and not ranges:
            raise DataError(f"{where}: no column is left for features")
        return self.model_copy(update={"features": features, "others": False})


def check_there(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    """Raises ``DataError`` if a column that is wanted is not among those of a file."""
    for name in wanted:
        if name not in names:
            hint = nearest(name, names)
            raise DataError(f"{where}: has no column {name!r}; {hint}")
