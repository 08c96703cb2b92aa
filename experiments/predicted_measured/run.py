"""Predicted beside measured: other people's figures, all by one set of constants.

    python -m experiments.predicted_measured.run

writes results.json beside this file and prints the tables of README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from embark_jax.plans import fleet
from experiments.predicted_measured import (
    collectives,
    inputs,
    kernels,
    own,
    systems,
)
from experiments.predicted_measured.cases import FOLDER, Case, score

GROUPS = {
    "systems": systems.cases,
    "kernels": kernels.cases,
    "our H200": own.cases,
    "collectives": collectives.cases,
    "inputs": inputs.cases,
}


def cases_of(efficiency: fleet.Efficiency) -> list[Case]:
    """Returns all cases, predicted with an efficiency."""
    return [case for of_group in GROUPS.values() for case in of_group(efficiency)]


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
    argparse.ArgumentParser(description=__doc__).parse_args()
    cases = cases_of(fleet.gpu_efficiency())
    scores = summary(cases)
    results = {
        "constants": dataclasses.asdict(fleet.gpu_efficiency()),
        "scores": scores,
        "cases": [dataclasses.asdict(case) for case in cases],
    }
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    show(cases, scores)


if __name__ == "__main__":
    main()
