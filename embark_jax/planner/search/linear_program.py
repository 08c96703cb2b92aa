"""A linear program whose rows and limits change: HiGHS goes on from the last solution.

Beside a new program for each solution (``scipy.optimize.linprog``), planning takes 0.5
to 0.75 of the CPU time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import highspy
import numpy as np
from scipy import sparse

ITERATIONS = 5
"""Iterations of the simplex method for each row of a program, after which another
method goes on: the dual one may cycle where many candidates cost the same."""
METHODS = (("simplex", 1), ("simplex", 4), ("ipm", 1))
"""Solvers of HiGHS, with the strategy of the simplex method: dual, primal, and points
inside."""
INFEASIBLE = (
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,  # all costs are bounded
)


class UnsolvedError(RuntimeError):
    """A program has neither an optimum nor a proof that it has none."""


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
        sums: Any,
        totals: np.ndarray,
        presolve: bool = True,
    ):
        """
        Args:
          cost, upper: ``[variables]``.
          sums, totals: equations, ``[sums, variables]``, and ``[sums]`` right sides.
          presolve: whether HiGHS may simplify the program before it begins.
        """
        number = len(cost)
        self.cost, self.limits = cost, np.zeros(0)
        self._rows: list[Any] = []
        self._solver: Any = highspy.Highs()
        self._solver.silent()
        self._solver.setOptionValue("presolve", "choose" if presolve else "off")
        nothing = np.zeros(0, np.int32)
        first = np.zeros(number, np.int32)
        self._solver.addCols(
            number, cost, np.zeros(number), upper, 0, first, nothing, np.zeros(0)
        )
        self._sums = len(totals)
        self._add_rows(sums, totals, totals)

    def add_rows(self, rows: Any, limits: np.ndarray) -> None:
        """Adds ``[rows, variables]`` rows, sparse or not, with ``[rows]`` limits."""
        self._rows.append(self._add_rows(rows, np.full(len(limits), -np.inf), limits))
        self.limits = np.append(self.limits, limits)

    def _add_rows(self, rows: Any, lower: np.ndarray, upper: np.ndarray) -> Any:
        rows = sparse.csr_array(rows)
        rows.sum_duplicates()  # and sorts
        rows.eliminate_zeros()
        self._solver.addRows(
            len(upper), lower, upper, rows.nnz, rows.indptr, rows.indices, rows.data
        )
        return rows

    def limit(self, variables: np.ndarray, least: np.ndarray, most: np.ndarray) -> None:
        """Limits some variables anew."""
        variables = variables.astype(np.int32)
        self._solver.changeColsBounds(len(variables), variables, least, most)

    def solve(self) -> Optimum | None:
        """Returns the optimum; None if no values satisfy the rows.

        Raises:
          UnsolvedError: if no method comes to an end.
        """
        solver = self._solver
        most = ITERATIONS * (self._sums + len(self.limits) + len(self.cost))
        solver.setOptionValue("simplex_iteration_limit", most)
        for method, strategy in METHODS:
            solver.setOptionValue("solver", method)
            solver.setOptionValue("simplex_strategy", strategy)
            solver.run()
            status = solver.getModelStatus()
            if status in INFEASIBLE:
                return None
            if status == highspy.HighsModelStatus.kOptimal:
                break
        else:
            raise UnsolvedError(f"HiGHS ends with {status.name}")
        solution = self._solver.getSolution()
        row_multipliers = np.asarray(solution.row_dual)[self._sums :]
        return Optimum(
            cost=self._solver.getInfo().objective_function_value,
            variables=np.maximum(solution.col_value, 0.0),
            multipliers=np.maximum(-row_multipliers, 0.0),
        )

    def rates(self, multipliers: np.ndarray) -> np.ndarray:
        """Returns ``[variables]`` costs, with the rows at these multipliers."""
        return self.cost + sparse.vstack(self._rows).T @ multipliers
