"""A linear program whose rows grow: HiGHS goes on from the last solution.

Beside a new program for each solution (``scipy.optimize.linprog``), planning takes 0.5
to 0.75 of the CPU time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import highspy
import numpy as np


class Rows(NamedTuple):
    """Rows of a linear program.

    Attributes:
      number: number of rows.
      row, column, value: what is not zero, by row and column.
    """

    number: int
    row: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, number: int, *parts: tuple[Any, Any, Any]) -> Rows:
        """Returns rows of ``(row, column, value)``, each an array or one for all."""
        arrays = [np.broadcast_arrays(*part) for part in parts]
        row, column, value = (
            np.concatenate([each.ravel() for each in of_parts])
            for of_parts in zip(*arrays, strict=True)
        )
        order = np.lexsort((column, row))
        order = order[value[order] != 0]
        return cls(number, row[order], column[order], value[order].astype(float))


class Optimum(NamedTuple):
    """The solution of a linear program.

    Attributes:
      cost: least cost.
      variables: ``[variables]`` values.
      multipliers: ``[rows]`` amount by which the cost falls for each unit that a row's
        limit rises, at least 0.
    """

    cost: float
    variables: np.ndarray
    multipliers: np.ndarray


class LinearProgram:
    """Minimises ``cost @ x`` such that ``sums @ x = totals``, ``rows @ x <= limits``
    and ``0 <= x <= upper``.

    Attributes:
      cost: ``[variables]`` cost.
      limits: ``[rows]`` of the rows so far.
    """

    def __init__(
        self,
        cost: np.ndarray,
        upper: np.ndarray,
        sums: Rows,
        totals: np.ndarray,
        presolve: bool = True,
    ):
        """
        Args:
          cost, upper: ``[variables]``.
          sums, totals: equations, and ``[sums]`` their right sides.
          presolve: whether HiGHS may simplify the program before it begins.
        """
        number = len(cost)
        self.cost, self.limits = cost, np.zeros(0)
        self._rows: list[Rows] = []
        self._solver: Any = highspy.Highs()
        self._solver.silent()
        self._solver.setOptionValue("presolve", "choose" if presolve else "off")
        nothing = np.zeros(0, np.int32)
        first = np.zeros(number, np.int32)
        self._solver.addCols(
            number, cost, np.zeros(number), upper, 0, first, nothing, np.zeros(0)
        )
        self._sums = sums.number
        self._add_rows(sums, totals, totals)

    def add_rows(self, rows: Rows, limits: np.ndarray) -> None:
        """Adds rows with ``[rows]`` limits."""
        self._rows.append(rows)
        self.limits = np.append(self.limits, limits)
        self._add_rows(rows, np.full(rows.number, -np.inf), limits)

    def _add_rows(self, rows: Rows, lower: np.ndarray, upper: np.ndarray) -> None:
        first = np.searchsorted(rows.row, np.arange(rows.number + 1)).astype(np.int32)
        column = rows.column.astype(np.int32)
        self._solver.addRows(
            rows.number, lower, upper, len(column), first, column, rows.value
        )

    def solve(self) -> Optimum | None:
        """Returns the optimum; None if no values satisfy the rows."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        row_multipliers = np.asarray(solution.row_dual)[self._sums :]
        return Optimum(
            cost=self._solver.getInfo().objective_function_value,
            variables=np.maximum(solution.col_value, 0.0),
            multipliers=np.maximum(-row_multipliers, 0.0),
        )

    def rates(self, multipliers: np.ndarray) -> np.ndarray:
        """Returns ``[variables]`` costs, with the rows at these multipliers."""
        rates, first = self.cost.copy(), 0
        for rows in self._rows:
            factors = multipliers[first : first + rows.number][rows.row]
            rates += np.bincount(rows.column, rows.value * factors, len(rates))
            first += rows.number
        return rates
