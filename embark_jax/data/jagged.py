"""Sequences on hosts: values and lengths, without padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from embark_jax._base.errors import DataError
from embark_jax.plans.tables import PADDING_ID


@dataclasses.dataclass(frozen=True, eq=False)
class Jagged:
    """The events of samples, one sample's after the other's.

    It stands for a *padded* array ``[batch, longest]``, which NumPy makes of it. If 4
    places hold ``[-1, 7, 8, -1]`` and ``[5, -1, -1, -1]``, the values are ``[7, 8,
    5]``, the lengths 2 and 1, and the events begin at 1 and 0. Padding between two
    events of a sample is a value.

    Attributes:
      values: ``[events]`` ids, or weights, of all samples.
      length: ``[batch]`` integers, number of values of each sample.
      longest: number of places of a sample; None takes as many as there must be.
      begin: ``[batch]`` integers, place of each sample's first value; None says that
        all begin at 0.
      fill: value of places that have none.
    """

    values: np.ndarray
    length: np.ndarray
    longest: int = dataclasses.field(default=None, kw_only=True)  # pyright: ignore
    begin: np.ndarray = dataclasses.field(default=None, kw_only=True)  # pyright: ignore
    fill: float = dataclasses.field(default=PADDING_ID, kw_only=True)

    def __post_init__(self):
        if self.begin is None:
            object.__setattr__(self, "begin", np.zeros_like(self.length))
        if self.longest is None:
            longest = int(np.max(self.begin + self.length, initial=0))
            object.__setattr__(self, "longest", longest)

    @classmethod
    def of(cls, padded: np.ndarray, present: np.ndarray) -> Jagged:
        """Packs ids.

        Args:
          padded: ``[batch, longest]`` ids.
          present: ``[batch, longest]`` bool, which of them are no padding.
        """
        longest = padded.shape[1]
        length = begin = np.zeros(len(padded), np.int32)
        if padded.size:
            begin = np.argmax(present, axis=1).astype(np.int32)
            end = longest - np.argmax(present[:, ::-1], axis=1)
            some = present[np.arange(len(padded)), begin]
            length = np.where(some, end - begin, 0).astype(np.int32)
        jagged = cls(padded.ravel()[:0], length, longest=longest, begin=begin)
        return dataclasses.replace(jagged, values=jagged.pick(padded))

    def pick(self, padded: np.ndarray) -> np.ndarray:
        """Returns ``[events]``: the values of ``[batch, longest]`` at these places."""
        return padded[self._has_value()]

    def samples(self, start: int, stop: int) -> Jagged:
        """Returns some samples; those beyond the last have no values."""
        ends = np.concatenate([[0], np.cumsum(self.length)])
        first, last = ends[np.clip([start, stop], 0, len(self))]
        missing = stop - start - len(self.length[start:stop])
        return dataclasses.replace(
            self,
            values=self.values[first:last],
            length=np.pad(self.length[start:stop], (0, missing)),
            begin=np.pad(self.begin[start:stop], (0, missing)),
        )

    def take(self, samples: np.ndarray) -> Jagged:
        """Returns the samples of these numbers, in this order."""
        length = self.length[samples]
        first = (np.cumsum(self.length) - self.length)[samples]
        shift = np.repeat(first - (np.cumsum(length) - length), length)
        values = self.values[np.arange(len(shift)) + shift]
        return dataclasses.replace(
            self, values=values, length=length, begin=self.begin[samples]
        )

    def checked(
        self, what: str, batch: int, longest: int, locate: Callable[[int], str]
    ) -> Jagged:
        """Returns these values in places up to ``longest``.

        Args:
          what: name of the values in messages.
          batch: number of samples that there must be.
          longest: largest number of places.
          locate: says where a sample came from.

        Raises:
          DataError: if lengths and begins do not say where the values lie, or there is
            no room for them.
        """
        for kind, counts in (("lengths", self.length), ("begins", self.begin)):
            shape, dtype = np.shape(counts), np.asarray(counts).dtype
            if shape != (batch,) or dtype.kind not in "iu":
                raise DataError(
                    f"{what}: {kind} are {dtype} of shape {shape}, must be integers of "
                    f"shape ({batch},)"
                )
        length, begin = self.length.astype(np.int64), self.begin.astype(np.int64)
        ends = begin + length
        for kind, counts in (("length", length), ("begin", begin), ("end", ends)):
            bad = np.flatnonzero((counts < 0) | (counts > longest))
            if len(bad):
                raise DataError(
                    f"{locate(int(bad[0]))}: {what}: {kind} is {counts[bad[0]]}, must "
                    f"be from 0 to {longest}, the longest ({len(bad)} such values in "
                    "this batch)"
                )
        if np.shape(self.values) != (events := int(length.sum()),):
            raise DataError(
                f"{what}: values are of shape {np.shape(self.values)}, must be of "
                f"shape ({events},), as many as the lengths say"
            )
        return dataclasses.replace(
            self,
            length=length.astype(np.int32),
            longest=longest,
            begin=begin.astype(np.int32),
        )

    def lies_as(self, other: Jagged) -> bool:
        """Says whether other values have the same places."""
        return np.array_equal(self.length, other.length) and np.array_equal(
            self.begin, other.begin
        )

    def place(self, value: int) -> tuple[int, int]:
        """Returns the sample of a value, and its place there."""
        ends = np.cumsum(self.length)
        sample = int(np.searchsorted(ends, value, side="right"))
        first = ends[sample] - self.length[sample]
        return sample, int(self.begin[sample] + value - first)

    @property
    def spans(self) -> np.ndarray:
        """``[batch, 2]`` int32: place of each sample's first value, and how many."""
        return np.stack([self.begin, self.length], axis=1, dtype=np.int32)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.longest

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return len(self.length)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        padded = np.full(self.shape, self.fill, self.dtype)
        padded[self._has_value()] = self.values
        return padded.astype(dtype or self.dtype, copy=False)

    def __getitem__(self, samples: Any) -> np.ndarray:
        """Returns ``[…, longest]``, padded."""
        if isinstance(samples, slice) and samples.step is None:
            start, stop, _ = samples.indices(len(self))
            return np.asarray(self.samples(start, max(start, stop)))
        return np.asarray(self)[samples]

    def _has_value(self) -> np.ndarray:
        """Returns ``[batch, longest]`` bool: where there are values."""
        column = np.arange(self.longest, dtype=np.int32)[None]
        end = self.begin + self.length
        return (column >= self.begin[:, None]) & (column < end[:, None])
