"""A linear program whose rows grow: HiGHS goes on from the last solution.

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
      variables: ``[variables]`` values.
      multipliers: ``[rows]`` amount by which the cost falls for each unit that a row's
        limit rises, at least 0.
    """

    cost: float
    variables: np.ndarray
    multipliers: np.ndarray


class LinearProgram:
    """Minimises ``cost @ x`` such that ``sums @ x = totals``, ``matrix @ x <= limits``
    and ``0 <= x <= upper``.

    Attributes:
      cost: ``[variables]`` cost.
      matrix, limits: ``[rows, variables]`` and ``[rows]`` of the rows so far.
    """

    def __init__(
        self,
        cost: np.ndarray,
        upper: np.ndarray,
        sums: sparse.csr_matrix,
        totals: np.ndarray,
    ):
        """
        Args:
          cost, upper: ``[variables]``.
          sums, totals: ``[sums, variables]`` and ``[sums]``.
        """
        number = len(cost)
        self.cost = cost
        self.matrix = sparse.csr_matrix((0, number))
        self.limits = np.zeros(0)
        self._sums = len(totals)
        self._solver: Any = highspy.Highs()
        self._solver.silent()
        nothing = np.zeros(0, np.int32)
        first = np.zeros(number, np.int32)
        self._solver.addCols(
            number, cost, np.zeros(number), upper, 0, first, nothing, np.zeros(0)
        )
        self._add_rows(sums, totals, totals)

    def add_rows(self, matrix: sparse.csr_matrix, limits: np.ndarray) -> None:
        """Adds ``[rows, variables]`` with ``[rows]`` limits."""
        self.matrix = sparse.csr_matrix(sparse.vstack([self.matrix, matrix]))
        self.limits = np.append(self.limits, limits)
        self._add_rows(matrix, np.full(len(limits), -np.inf), limits)

    def _add_rows(
        self, matrix: sparse.csr_matrix, lower: np.ndarray, upper: np.ndarray
    ) -> None:
        self._solver.addRows(
            len(lower),
            lower,
            upper,
            matrix.nnz,
            matrix.indptr,
            matrix.indices,
            matrix.data,
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
