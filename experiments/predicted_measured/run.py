"""Predicted beside measured, by data sheets and by the constants that were fitted.

    python -m experiments.predicted_measured.run

writes results.json beside this file and prints the tables of README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from experiments.predicted_measured import (
    collectives,
    inputs,
    kernels,
    own,
    systems,
)
from experiments.predicted_measured.cases import (
    FOLDER,
    Case,
    Constants,
    data_sheets,
    fitted,
    score,
)

GROUPS = {
    "systems": systems.cases,
    "kernels": kernels.cases,
    "our H200": own.cases,
    "collectives": collectives.cases,
    "inputs": inputs.cases,
}


def cases_of(constants: Constants, shift: int) -> list[Case]:
    """Returns all cases, predicted with constants and a shift of the power law."""
    cases = []
    for name, of_group in GROUPS.items():
        more = (shift,) if name == "inputs" else ()
        cases += of_group(constants, *more)
    return cases


def summary(cases: Sequence[Case]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the scores of each group: of cases seen, those kept aside, and all."""
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for group in GROUPS:
        of_group = [case for case in cases if case.group == group]
        parts = {
            "seen": [case for case in of_group if not case.kept_aside],
            "kept aside": [case for case in of_group if case.kept_aside],
            "all": of_group,
        }
        scores[group] = {part: score(chosen) for part, chosen in parts.items()}
    return scores


def show(columns: dict[str, list[Case]]) -> None:
    """Prints the tables of the README."""
    sheets, fitted = (summary(cases) for cases in columns.values())
    print(
        "| group | cases | held out | MAPE, data sheets | held out | fitted | held out "
        "| mean ratio | rank correlation |\n" + 9 * "|---" + "|"
    )
    for group in GROUPS:
        mapes = " | ".join(
            f"{scores[group][part]['mape']:.0%}"
            for scores in (sheets, fitted)
            for part in ("all", "kept aside")
        )
        of_all, aside = fitted[group]["all"], fitted[group]["kept aside"]
        print(
            f"| {group} | {of_all['cases']} | {aside['cases']} | {mapes} | "
            f"{of_all['bias']:.2f} | {of_all['rank_correlation']:.2f} |"
        )
    for group in GROUPS:
        print(
            f"\n{group}\n\n| case | measured | data sheets | ratio | fitted | ratio |"
            "\n|---|---|---|---|---|---|"
        )
        for before, after in zip(*columns.values(), strict=True):
            if after.group == group:
                star = "°" if after.kept_aside else ""
                print(
                    f"| [{after.name}]({after.source}){star} | {after.measured:.4g} "
                    f"{after.unit} | {before.predicted:.4g} | {before.ratio:.2f} | "
                    f"{after.predicted:.4g} | {after.ratio:.2f} |"
                )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    constants = {"data sheets": data_sheets(), "fitted": fitted()}
    shifts = {"data sheets": 0, "fitted": inputs.SHIFT}
    columns = {name: cases_of(each, shifts[name]) for name, each in constants.items()}
    results = {
        name: {
            "constants": {
                kind: dataclasses.asdict(each)
                for kind, each in constants[name]._asdict().items()
            },
            "scores": summary(cases),
            "predicted": {case.name: case.predicted for case in cases},
        }
        for name, cases in columns.items()
    }
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    show(columns)


if __name__ == "__main__":
    main()
