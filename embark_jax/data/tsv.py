"""Reads tab-separated files, and checks every value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from embark_jax.data.batch import DataError


class TabSeparated:
    """A UTF-8 file of tab-separated values below a header line.

    Args:
      path: the file. Each of its lines ends with a newline, also the last.
      header: the names that the first line must hold.
      remedy: ends the message of an error that a new copy of the file would fix.

    Raises:
      DataError: if the file cannot be read, is not UTF-8 or has another header, or if a
        row has too few or too many columns, an empty one, or is cut off.
    """

    def __init__(self, path: Path, header: Sequence[str], remedy: str):
        self.path, self._header, self._remedy = path, list(header), remedy
        try:
            lines = path.read_bytes().decode("utf-8").split("\n")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; {remedy}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error}); {remedy}") from None
        if (found := lines[0].split("\t")) != self._header:
            raise DataError(
                f"{path}, line 1: header is {found!s:.200}, must be {self._header}; "
                + remedy
            )
        self.rows = [line.split("\t") for line in lines[1:-1]]
        for row, values in enumerate(self.rows):
            if len(values) != len(header):
                raise DataError(
                    f"{self.locate(row)}: has {len(values)} columns "
                    f"{values!s:.200}, must have {len(header)} "
                    f"({', '.join(header)}); {remedy}"
                )
            if "" in values:
                self._fail(row, header[values.index("")], "", "must not be empty")
        if lines[-1]:
            raise DataError(
                f"{path}, line {len(lines)}: the file ends inside this row, "
                f"{lines[-1]!r:.80}, which must end with a newline; {remedy}"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def locate(self, row: int) -> str:
        """The location of row ``row`` (from 0), such as ``"data/a.tsv, line 2"``."""
        return f"{self.path}, line {row + 2}"

    def column(self, name: str) -> list[str]:
        """The values of one column as text."""
        position = self._header.index(name)
        return [values[position] for values in self.rows]

    def numbers(self, name: str, least: float, most: float) -> np.ndarray:
        """A column of numbers, float64 ``[rows]``.

        Raises:
          DataError: if a value is not a finite number in [least, most].
        """
        numbers = np.empty(len(self))
        rule = f"must be a number from {least:g} to {most:g}"
        for row, text in enumerate(self.column(name)):
            try:
                numbers[row] = number = float(text)
            except ValueError:
                self._fail(row, name, text, rule)
            if not (math.isfinite(number) and least <= number <= most):
                self._fail(row, name, text, rule)
        return numbers

    def keys(self, name: str) -> dict[str, int]:
        """The row of each value of a column of unique values.

        Raises:
          DataError: if a value occurs twice.
        """
        rows: dict[str, int] = {}
        for row, text in enumerate(self.column(name)):
            if text in rows:
                first = self.locate(rows[text])
                self._fail(
                    row, name, text, f"must be unique, but stands at {first} too"
                )
            rows[text] = row
        return rows

    def lookups(self, name: str, keys: Mapping[str, int], source: Path) -> np.ndarray:
        """The rows of another file that a column names, int64 ``[rows]``.

        Raises:
          DataError: if a value is not among the ``keys`` of ``source``.
        """
        found = np.empty(len(self), np.int64)
        for row, text in enumerate(self.column(name)):
            if text not in keys:
                self._fail(row, name, text, f"must be one of those in {source}")
            found[row] = keys[text]
        return found

    def _fail(self, row: int, column: str, value: str, rule: str) -> NoReturn:
        raise DataError(
            f"{self.locate(row)}, column {column}: value is {value!r:.80}, {rule}; "
            f"{self._remedy}"
        )
