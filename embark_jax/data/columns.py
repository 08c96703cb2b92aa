"""Describes the columns of a user's own files, as YAML has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from embark_jax._base.config import Config, nearest
from embark_jax.data.batch import DataError
from embark_jax.plans.options import OnBadLine
from embark_jax.plans.tables import HASHED_KEYS

PAST = "past_"
"""How the names of histories begin."""
Separator = Annotated[str, Field(pattern=r'^[^"\r\n\x80-\U0010ffff]$')]
"""One ASCII character, which is no quote and ends no line."""


HashedRows = Annotated[
    int,
    BeforeValidator(lambda rows: HASHED_KEYS if rows == "keys" else rows),
    Field(ge=2, le=HASHED_KEYS),
]
"""Rows to which a column is hashed; ``keys`` is as many as numbers of 63 bits."""


class NumberColumn(Config):
    """A column of numbers. Transforms are fitted to the training samples. The name of
    a transform alone will do: ``price: log``."""

    transform: Literal["none", "log", "standardize", "quantiles"] = "none"
    """``log`` is log(1 + x), with 0 for numbers below 0. ``standardize`` gives mean 0
    and standard deviation 1. ``quantiles`` makes it a feature, whose categories are
    ranges with equally many samples."""
    quantiles: Annotated[int, Field(ge=2)] = 32
    """Number of ranges of ``quantiles``; fewer if many samples have the same number."""
    missing: Literal["zero", "mean"] = "zero"
    """What a missing number becomes after the transform. With ``quantiles`` missing
    numbers are a category of their own."""

    @model_validator(mode="before")
    @classmethod
    def _from_transform(cls, value: Any) -> Any:
        return {"transform": value} if isinstance(value, str) else value


class CategoryColumn(Config):
    """A column of categories, integers or text, alone or in lists."""

    table: str | None = None
    """The table that it reads, with other columns of the same values; None takes its
    own table."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """The separator between the values of a list in text; None means a single value.
    Parquet has its own lists."""
    text: bool | None = None
    """Whether each text is a value as it is: otherwise 007 and 7, or 1.10 and 1.1, are
    one, and texts such as NA are missing. None says that it is one in columns of text
    of Parquet, and not in CSV, where numbers are text, too."""
    missing: tuple[str, ...] | None = None
    """The texts that stand for a missing value; None takes those of the file."""
    sequence: bool = False
    """Whether the order of a list counts, the latest last; otherwise its embeddings are
    averaged."""
    independent: bool = False
    """Whether a sequence has lengths of its own; others of a sample must be of one
    length, with a place for each missing value."""
    rows: PositiveInt | None = None
    """If set, values are row numbers already, from 0 on and below this, as they were
    made elsewhere; missing ones are left out."""
    longest: PositiveInt | None = None
    """The most values to keep: sequences keep their last ones, other lists their
    first."""


class Pools(Config):
    """Events by the values of a column, of each of which a history has the latest."""

    column: str
    """A column of histories whose values are row numbers."""
    count: PositiveInt
    """Number of pools, which are the first rows; each has an equal share of the longest
    history."""


class AgeBuckets(Config):
    """Buckets of how long each event was before the last one, which stand for its time:
    the square root of minutes, as in MLPerf's DLRMv4."""

    column: str
    """A column of histories with seconds."""
    most: PositiveInt = 2048
    """The last bucket."""

    @property
    def rows(self) -> int:
        """Returns the number of rows of their table."""
        return self.most + 1

    def of(self, seconds: np.ndarray) -> np.ndarray:
        """Returns the bucket of each age, int32."""
        roots = np.sqrt(np.maximum(0, seconds) / 60)
        return np.minimum(roots, self.most).astype(np.int32)


class HistoryColumns(Config):
    """What each sample has of the earlier events of its user: for each column a
    sequence ``past_COLUMN``, the latest last, which reads the column's table."""

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns of categories, with one value each; a missing one keeps its place."""
    longest: PositiveInt = 50
    """The most events of a history: the latest."""
    ties: bool = False
    """Whether events of one time are in each other's histories, by the order of the
    files."""
    positive: bool = False
    """Whether only lines whose label is 1 are events of histories."""
    least: NonNegativeInt = 0
    """Lines before which their user has fewer others are no samples, but events of
    later ones."""
    every: PositiveInt = 1
    """Every so many training lines of a user are a sample, counted from the last one;
    the others are events alone. One more than ``longest`` trains on each event once
    with ``model.every_position``."""
    scan: PositiveInt | None = None
    """A history is of so many latest events; None looks at all."""
    pools: Pools | None = None
    """Takes the latest events of each pool; None takes the latest of all."""
    ages: AgeBuckets | None = None
    """Gives events ages in place of times."""
    separator: Annotated[str, Field(min_length=1)] = ";"
    """The separator between events in text that is scored later, whose histories the
    columns ``past_COLUMN`` have."""

    @property
    def features(self) -> dict[str, str]:
        """Returns the column of each sequence."""
        return {f"{PAST}{name}": name for name in self.columns}


class NegativeColumns(Config):
    """Negatives of a log: for each sample of label 1 others of label 0, with items that
    training samples of label 1 have, but not its own."""

    item: str
    """The column of the item."""
    columns: tuple[str, ...] = ()
    """Further columns of the item, such as its category, which come with it."""
    count: PositiveInt = 1
    """Number of negatives of a sample."""
    by: Literal["uniform", "popularity"] = "uniform"
    """Whether all items are as likely, or each as often as it occurs."""
    unseen: bool = False
    """Whether none is drawn that the sample's user has on any line."""
    seed: NonNegativeInt = 0
    """Seed of the draws."""


class LabelColumn(Config):
    """One of several labels."""

    column: str | None = None
    """Its column; None is the one of its name."""
    positive_from: float | None = None
    """See ``positive_from`` of all; this one wins."""


class Preparation(Config):
    """How samples are split and get rows, whatever their files are."""

    split: str | None = None
    """How to split. ``time`` holds out the latest tenth, ``random`` and ``user`` a
    fifth of samples or of users, ``leave-one-out`` the last two events of each user,
    ``none`` nothing. A share, such as ``time=0.2``, is halved into validation and test;
    ``time=2024-05-01,2024-05-08`` says when these begin. ``column=NAME`` takes a column
    of own files that says train, validation or test. None takes what is usual for the
    data: in own files by time where there are times."""
    min_count: PositiveInt = 1
    """Values that occur less often in training samples share one row."""
    max_rows: Annotated[int, Field(ge=2)] = 40_000_000
    """Largest number of rows of a table; more values are hashed to it."""
    hashed: bool = False
    """Whether the ids of every table are hashed to ``max_rows``."""
    hash_columns: Mapping[str, HashedRows | None] = {}
    """Columns whose ids are hashed, alone, with the number of rows; None is
    ``max_rows``, and ``keys`` makes 63 bits of a value for a dynamic table. A list of
    columns will do."""
    window: PositiveInt | None = None
    """Cuts samples into time windows of this length, in units of the column of times,
    or in seconds if these are dates; ``data.kind=windows`` trains on them in order."""
    unseen: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of values in training samples that are taken for unknown ones, such as
    0.01: it trains the row that values share which training never saw."""
    on_bad_line: OnBadLine = "error"
    """Whether to stop at the first bad line (``error``), or to leave bad lines out and
    count them (``skip``)."""
    history: HistoryColumns | None = None
    """Makes histories of the lines: of each sample the earlier events of its ``user``,
    earlier by ``time``; those of one time are in each other's only with ``ties``."""

    @field_validator("hash_columns", mode="before")
    @classmethod
    def _from_columns(cls, value: Any) -> Any:
        return dict.fromkeys(value) if isinstance(value, list | tuple) else value


class Columns(Preparation):
    """The columns of a user's own files, and how these are prepared."""

    label: str | None = "label"
    """The column of the label, a number from 0 to 1; ``null`` says that there is none:
    each line is an event that happened, label 1."""
    labels: Mapping[str, LabelColumn] = {}
    """The labels, if samples have several, in place of ``label``: a list of columns, or
    by name, such as ``love: {column: stars, positive_from: 5}``. A sample that lacks
    one has no loss for this task."""
    positive_from: float | None = None
    """If set, a label may be any number; it becomes 1 from this one on, otherwise 0."""
    weight: str | None = None
    """A column with the weight of each sample, 0 or more, in loss and metrics."""
    dense: Mapping[str, NumberColumn] = {}
    """Columns of numbers."""
    features: Mapping[str, CategoryColumn] = {}
    """Columns of categories of which there is something to say, such as that they hold
    lists; or all of them, without ``others``."""
    weights: Mapping[str, str] = {}
    """For features with lists, the columns with the weight of each of their values,
    such as ``tags: tag_weights``: lists as long, in which no weight is missing. A
    missing value keeps its place."""
    cross: Mapping[str, Annotated[tuple[str, ...], Field(min_length=2)]] = {}
    """Features of the values of several others together, such as ``user_hour: [user,
    hour]``; missing if one of these is."""
    others: bool = True
    """Whether columns that are not named are features, too, with one value each; in
    Parquet also with lists."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out."""
    join: Mapping[str, str] = {}
    """Files beside the log, each with the column by which its lines, such as those of
    items, are joined: ``items.csv: item``. What a file says nothing of is missing."""
    user: str | None = None
    """The column of the user of each line, for histories and for splits by user; it
    may be a feature, too, or ignored."""
    user_text: bool | None = None
    """Whether each text of ``user`` is a user as it is, where it is no feature; see
    ``text`` of features."""
    decimal: Literal[".", ","] = "."
    """The sign before the fraction of a number of ``dense`` in text."""
    negatives: NegativeColumns | None = None
    """Negatives that are drawn for each positive sample."""
    optional: tuple[str, ...] = ()
    """Columns that some files may lack: their values are missing there."""
    time: str | None = None
    """A column with a number, or a date such as 2024-05-31 12:30:00, for each sample:
    the latest samples are held out. Dates with a time zone, such as
    2024-05-31T12:30:00+02:00, are instants of UTC."""
    missing: tuple[str, ...] | None = None
    """The texts that stand for a missing value, such as ``["", "NA", "-"]``; None takes
    the empty one, and those that databases and data frames write, such as NULL, NA and
    NaN. With ``text`` only the empty one is."""
    separator: Separator | None = None
    """The separator between columns of text, one ASCII character; None takes a tab in
    .tsv files, and a comma in others."""

    @field_validator("labels", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        return {n: {} for n in value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _check_history(self) -> Columns:
        if self.history is not None:
            if self.user is None or self.time is None:
                raise ValueError("history: needs the columns user and time")
            if self.history.positive and (self.labels or self.label is None):
                raise ValueError("history.positive: needs one column of labels")
        if self.negatives is not None:
            if self.labels:
                raise ValueError("negatives: need a single label")
            if self.negatives.unseen and self.user is None:
                raise ValueError("negatives.unseen: needs the column user")
        return self

    @property
    def scored(self) -> Columns:
        """Returns the columns of rows that are scored: histories are lists there."""
        if self.history is None:
            return self
        past = {
            sequence: self.features[name].model_copy(
                update={
                    "table": self.features[name].table or name,
                    "separator": self.history.separator,
                    "sequence": True,
                    "longest": self.history.longest,
                }
            )
            for sequence, name in self.history.features.items()
        }
        return self.model_copy(update={"features": {**self.features, **past}})

    @property
    def split_column(self) -> str | None:
        """Returns the column that says the split of each sample, if there is one."""
        by, _, name = (self.split or "").partition("=")
        return name if by == "column" else None

    @property
    def named(self) -> tuple[str, ...]:
        """Returns all columns that are used."""
        others = filter(None, (self.time, self.split_column, self.weight, self.user))
        return tuple(dict.fromkeys((*self.targets, *self.inputs, *others)))

    @property
    def targets(self) -> tuple[str, ...]:
        """Returns the columns of the label or the labels."""
        return tuple(dict.fromkeys(column for column, _ in self.marks.values()))

    @property
    def marks(self) -> dict[str, tuple[str, float | None]]:
        """Returns the column of each label, and from which number on it is 1."""
        if not self.labels:
            return {self.label: (self.label, self.positive_from)} if self.label else {}
        return {
            name: (
                label.column or name,
                self.positive_from
                if label.positive_from is None
                else label.positive_from,
            )
            for name, label in self.labels.items()
        }

    @property
    def inputs(self) -> tuple[str, ...]:
        """Returns the columns that a prediction needs."""
        return *self.dense, *self.features, *self.weights.values()

    def completed(self, names: Sequence[str], where: str) -> Columns:
        """Adds all features of a file with these columns.

        Raises:
          DataError: if a column is missing or is used twice, or none is left for
            features.
        """
        unsaid = not {"label", "labels"} & self.model_fields_set
        if unsaid and self.label not in names and len(names) > 1:
            raise DataError(
                f"{where}: has no column {self.label!r}; say which is the label, such "
                f"as label={names[-1]}, or label=null if each line is an event that "
                f"happened; known: {', '.join(sorted(names))}"
            )
        used = {*self.targets, *self.inputs, *self.ignore}
        # The user may be a feature, too.
        used |= {self.time, self.split_column, self.weight}
        others = [name for name in names if self.others and name not in used]
        check_there((*self.named, *others), names, where)
        check_there(self.ignore, [*{*names}], where)  # also all of several
        if "" in names and "" not in self.ignore and (self.others or "" in self.named):
            raise DataError(
                f"{where}: column {names.index('') + 1} has no name; name it in the "
                "file, or leave it out: ignore: ['']"
            )
        if twice := sorted(self.dense.keys() & self.features.keys()):
            raise DataError(
                f"{where}: column {twice[0]!r} is dense and a feature, must be one"
            )
        features = {**self.features, **dict.fromkeys(others, CategoryColumn())}
        if self.user in features and features[self.user].separator:
            raise DataError(f"{where}: user: {self.user!r} has lists, must have one")
        for sequence, name in self.history.features.items() if self.history else ():
            if name not in features:
                hint = nearest(name, features)
                raise DataError(
                    f"{where}: history.columns: {name!r} is no feature; {hint}"
                )
            if features[name].separator or features[name].sequence:
                raise DataError(f"{where}: history.columns: {name!r} has lists")
            if sequence in {*features, *self.dense}:
                raise DataError(
                    f"{where}: column {sequence!r} is there, and history makes it; "
                    "ignore or rename it"
                )
        for name in self.weights.keys() - features:
            raise DataError(
                f"{where}: weights.{name}: is no feature; {nearest(name, features)}"
            )
        drawn = self.negatives
        for name in (drawn.item, *drawn.columns) if drawn else ():
            crosses = [cross for cross, of in self.cross.items() if name in of]
            as_range = name in self.dense and self.dense[name].transform == "quantiles"
            if name not in {*features, *self.dense} or crosses or as_range:
                hint = nearest(name, {*features, *self.dense})
                if crosses or as_range:
                    hint = "it is crossed, or in ranges, which draws do not know"
                raise DataError(f"{where}: negatives: {name!r} is no column; {hint}")
        ranges = [c for c in self.dense.values() if c.transform == "quantiles"]
        for cross, crossed in self.cross.items():
            if cross in {*features, *self.dense}:
                raise DataError(f"{where}: column {cross!r} is there, and a cross, too")
            for name in crossed:
                if name not in features or features[name].separator:
                    hint = nearest(name, features)
                    raise DataError(
                        f"{where}: cross.{cross}: {name!r} is no feature of single "
                        f"values; {hint}"
                    )
        if not features and not ranges:
            raise DataError(f"{where}: no column is left for features")
        return self.model_copy(update={"features": features, "others": False})


def check_there(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    """Raises ``DataError`` if a file lacks a wanted column, or has it twice."""
    for name in wanted:
        if name not in names:
            hint = nearest(name, names)
            if len(names) == 1 and not names[0].isidentifier():
                hint = (
                    f"its only one is {names[0]!r}; separator=... says what else is "
                    "between columns"
                )
            elif name.startswith(PAST):
                hint = (
                    "it has the earlier events of the row's user, the latest last, "
                    "such as a;b;c, or a list; --log makes it of a log"
                )
            raise DataError(f"{where}: has no column {name!r}; {hint}")
        if (count := list(names).count(name)) > 1:
            raise DataError(
                f"{where}: has {count} columns {name!r}, must have one; rename the "
                "others, or leave all of them out"
            )
