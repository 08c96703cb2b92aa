"""A linear program that grows: HiGHS begins each solution where the last one ended.

Beside a new program for each solution (``scipy.optimize.linprog``), planning takes 0.5
to 0.75 of the CPU time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import highspy
import numpy as np
from scipy import sparse


class Optimum(NamedTuple):
    """The solution of a linear program.

    Attributes:
      cost: least cost.
      variables: ``[variables]`` values; 0 for those that were not added.
      multipliers: ``[rows]`` amount by which the cost falls for each unit that a row's
        limit rises, at least 0.
    """

    cost: float
    variables: np.ndarray
    multipliers: np.ndarray


class LinearProgram:
    """Minimises ``cost @ x`` such that ``sums @ x = totals``, ``matrix @ x <= limits``
    and ``0 <= x <= upper``; variables that were not added are 0.

    Attributes:
      cost: ``[variables]`` cost.
      matrix, limits: ``[rows, variables]`` and ``[rows]`` of the rows so far.
    """

    def __init__(
        self,
        cost: np.ndarray,
        upper: np.ndarray,
        sums: sparse.csc_matrix,
        totals: np.ndarray,
    ):
        """
        Args:
          cost, upper: ``[variables]``.
          sums, totals: ``[sums, variables]`` and ``[sums]``.
        """
        self.cost, self._upper, self._sums = cost, upper, sums
        self._first = len(totals)  # row after the sums
        self.matrix = sparse.csc_matrix((0, len(cost)))
        self.limits = np.zeros(0)
        self._added = np.zeros(0, np.int64)
        self._solver: Any = highspy.Highs()
        self._solver.silent()
        self._add_rows(sums, totals, totals)

    def add_rows(self, matrix: sparse.csr_matrix, limits: np.ndarray) -> None:
        """Adds ``[rows, variables]`` with ``[rows]`` limits."""
        self.matrix = sparse.vstack([self.matrix, matrix]).tocsc()
        self.limits = np.append(self.limits, limits)
        self._add_rows(matrix, np.full(len(limits), -np.inf), limits)

    def _add_rows(self, matrix, least: np.ndarray, most: np.ndarray) -> None:
        here = sparse.csr_matrix(matrix.tocsc()[:, self._added])
        triple = here.indptr, here.indices, here.data
        self._solver.addRows(len(least), least, most, here.nnz, *triple)

    def add_variables(self, numbers: np.ndarray) -> None:
        """Adds the variables of these numbers that it does not have yet."""
        new = np.setdiff1d(numbers, self._added)
        self._added = np.append(self._added, new)
        here = sparse.vstack([self._sums[:, new], self.matrix[:, new]]).tocsc()
        bounds = self.cost[new], np.zeros(len(new)), self._upper[new]
        triple = here.indptr, here.indices, here.data
        self._solver.addCols(len(new), *bounds, here.nnz, *triple)

    def solve(self) -> Optimum | None:
        """Returns the optimum; None if no values satisfy the rows."""
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found, x = self._solver.getSolution(), np.zeros(len(self.cost))
        x[self._added] = np.maximum(found.col_value, 0.0)
        of_rows = np.asarray(found.row_dual)[self._first :]
        least = self._solver.getInfo().objective_function_value
        return Optimum(least, x, np.maximum(-of_rows, 0.0))
