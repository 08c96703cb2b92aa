"""Predicted beside measured: other people's figures, all by one set of constants.

    python -m experiments.predicted_measured.run

writes results.json and plot.png beside this file and prints the tables of README.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from embark_jax.plans import fleet
from experiments.predicted_measured import (
    collectives,
    inputs,
    kernels,
    plans,
    systems,
)
from experiments.predicted_measured.cases import FOLDER, Case, score
from experiments.predicted_measured.plot import plot

GROUPS = {
    "systems": systems.cases,
    "kernels": kernels.cases,
    "collectives": collectives.cases,
    "inputs": inputs.cases,
}
NETWORK_SHARE = 0.95
"""Share of a network port that large messages reach: 10 nodes of one H100 send 47 of
50 GB/s (``measured/collectives.json``). The constants say 0.8 of all links."""


def summary(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Returns the scores of each group: of the cases seen, and of those kept aside."""
    scores = {}
    for group in GROUPS:
        of_group = [case for case in cases if case.group == group]
        for title, aside in (("seen", False), ("kept aside", True)):
            chosen = [case for case in of_group if case.kept_aside == aside]
            scores[f"{group}, {title}"] = score(chosen)
        scores[f"{group}, all"] = score(of_group)
    return scores


def show(cases: Sequence[Case], scores: dict[str, dict[str, Any]]) -> None:
    """Prints the tables of the README."""
    print(
        "| group | cases | MAPE | mean ratio | rank correlation |\n" + 5 * "|---" + "|"
    )
    for title, row in scores.items():
        rank = row["rank_correlation"]
        print(
            f"| {title} | {row['cases']} | {row['mape']:.0%} | {row['bias']:.2f} | "
            f"{'–' if rank is None else format(rank, '.2f')} |"
        )
    for group in GROUPS:
        print(
            f"\n{group}\n\n| case | measured | predicted | ratio |\n|---|---|---|---|"
        )
        for case in cases:
            if case.group == group:
                star = "°" if case.kept_aside else ""
                print(
                    f"| [{case.name}]({case.source}){star} | {case.measured:.4g} "
                    f"{case.unit} | {case.predicted:.4g} | {case.ratio:.2f} |"
                )


def main() -> None:
    cases = [case for of_group in GROUPS.values() for case in of_group()]
    scores = summary(cases)
    what_if = [*systems.cases(NETWORK_SHARE), *collectives.cases(NETWORK_SHARE)]
    results = {
        "constants": dataclasses.asdict(fleet.gpu_efficiency()),
        "scores": scores,
        "network_share": {
            "share": NETWORK_SHARE,
            **{
                group: score([case for case in what_if if case.group == group])
                for group in ("systems", "collectives")
            },
            "cases": {case.name: case.predicted for case in what_if},
        },
        "plans": list(plans.compared()),
        "cases": [dataclasses.asdict(case) for case in cases],
    }
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(cases, FOLDER / "plot.png")
    show(cases, scores)


if __name__ == "__main__":
    sys.exit(main())
