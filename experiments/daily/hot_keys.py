"""Share of a window's ids that a list of hot keys holds, if it is made once, anew for
each window, or with hindsight.

    python experiments/daily/hot_keys.py movielens
    python experiments/daily/hot_keys.py synthetic

It asks what hot rows of dynamic tables could gain: replicated rows serve their ids
without an exchange, as long as the list is of today.
"""

from __future__ import annotations

import argparse

import numpy as np
from run import Problem, movielens, synthetic

SHARES = (0.01, 0.1)
"""Hot keys, as shares of the different keys of the first window."""


def hottest(ids: np.ndarray, count: int) -> np.ndarray:
    """Returns the keys that occur most often."""
    keys, times = np.unique(ids, return_counts=True)
    return keys[np.argsort(-times, kind="stable")[:count]]


def shares(problem: Problem, column: str, share: float) -> list[tuple[float, float]]:
    """Returns the shares of ids of the second and of the last window that the list of
    the first window holds, that of the window before, and that of the window itself."""
    windows = [np.asarray(window[column].to_pylist()) for window in problem.windows]
    count = max(1, int(share * len(np.unique(windows[0]))))
    lists = [hottest(window, count) for window in windows]
    last = len(windows) - 1

    def held(window: int, of: int) -> float:
        return float(np.isin(windows[window], lists[of]).mean())

    sources = [(0, 0), (0, last - 1), (1, last)]
    return [(held(1, of), held(last, of_last)) for of, of_last in sources]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("movielens", "synthetic"))
    arguments = parser.parse_args()
    problem = movielens() if arguments.what == "movielens" else synthetic()
    print("| table, hot keys | made once | of the window before | with hindsight |")
    print("|---|---|---|---|")
    for column in problem.rows:
        for share in SHARES:
            cells = [
                f"{second:.0%} → {last:.0%}"
                for second, last in shares(problem, column, share)
            ]
            print(f"| {column}, {share:.0%} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
