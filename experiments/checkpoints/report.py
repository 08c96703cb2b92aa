"""From results.json: the tables of README.md, printed, and rates.svg."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

from embark_jax.planner.request.table_list import load_table_list

HERE = Path(__file__).parent
GIGABYTE = 1e9
MODELS = ("dlrm_dcnv2", "t7")
NODES = (1, 8, 16)
STATE_BYTES = {"dlrm_dcnv2": 4, "t7": 0}
"""Of the optimizer for a row: row-wise Adagrad's one value, and none of SGD's."""


def others(case: dict) -> dict[str, dict]:
    return {name: each for name, each in case.items() if name.startswith("restore: ")}


def rates(case: dict) -> dict[str, float]:
    """Gigabytes/s."""
    size, plain = case["bytes"] / GIGABYTE, case["baseline"]
    found = {
        "disk writes": size / min(plain["numpy_write_s"], plain["direct_write_s"]),
        "save": size / case["save"]["complete_s"],
        "disk reads": size / min(plain["numpy_read_s"], plain["direct_read_s"]),
        "restore, same plan": size / case["restore"]["restore_s"],
    }
    slowest = max(each["restore_s"] for each in others(case).values())
    found["restore, slowest other plan"] = size / slowest
    if "orbax" in case:
        found["Orbax saves"] = size / case["orbax"]["complete_s"]
        found["Orbax restores"] = size / case["orbax"]["restore_s"]
    return found


def row(case: dict) -> str:
    plain, size = case["baseline"], case["bytes"]
    small, save = case["save in little memory"], case["save"]
    cells = [
        f"{case['gigabytes']} GB",
        f"{case['devices']}" + (" (2 processes)" if case["processes"] > 1 else ""),
        f"{plain['copy_s']:.2f}",
        f"{save['stand_still_s']:.2f}",
        f"{small['stand_still_s']:.2f}",
        f"{plain['numpy_write_s']:.2f} / {plain['direct_write_s']:.2f}",
        f"{save['complete_s']:.2f}",
        f"{small['complete_s']:.2f}",
        f"{plain['numpy_read_s']:.2f} / {plain['direct_read_s']:.2f}",
        f"{case['restore']['restore_s']:.2f}",
        f"{case['restore in little memory']['restore_s']:.2f}",
        *(
            ", ".join(
                f"{each['restore_s']:.2f}"
                for name, each in others(case).items()
                if kind in name
            )
            or "–"
            for kind in ("pooled", "columns", "devices")
        ),
        f"{save['peak_bytes'] / size:.2f}",
        f"{small['peak_bytes'] / size:.2f}",
        f"{max(each['peak_bytes'] for each in others(case).values()) / size:.2f}",
    ]
    if "orbax" in case:
        orbax = case["orbax"]
        cells += [f"{orbax['complete_s']:.2f}", f"{orbax['restore_s']:.2f}"]
        cells += [f"{orbax['peak_bytes'] / size:.2f}"]
    else:
        cells += ["–"] * 3
    return "| " + " | ".join(cells) + " |"


def plot(cases: list[dict]) -> None:
    names = [*rates(cases[0])]
    figure, axes = plt.subplots(figsize=(9, 4))
    for number, name in enumerate(names):
        values = [rates(case).get(name, 0.0) for case in cases]
        places = [i + number / (len(names) + 1) for i in range(len(cases))]
        axes.bar(places, values, 1 / (len(names) + 1), label=name)
    axes.set_xticks(
        [i + 0.4 for i in range(len(cases))],
        [
            f"{case['gigabytes']} GB\n{case['devices']} dev."
            + ("\n2 proc." if case["processes"] > 1 else "")
            for case in cases
        ],
    )
    axes.set_ylabel("GB/s")
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(HERE / "rates.svg", metadata={"Date": None})


def estimate(cases: list[dict]) -> None:
    """Seconds on paper, at the rates of the largest case that was measured."""
    case = max(cases, key=lambda each: each["bytes"])
    found = rates(case)
    copy = case["bytes"] / GIGABYTE / case["save"]["stand_still_s"]
    print("\n| model | nodes | GB a host | stand-still | save | restore |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        tables = load_table_list(model).tables
        size = sum(t.rows * (4 * t.dim + STATE_BYTES[model]) for t in tables)
        for nodes in NODES:
            share = size / nodes / GIGABYTE
            seconds = share / copy, share / found["save"]
            seconds += (share / found["restore, same plan"],)
            shown = " | ".join(f"{each:,.0f} s" for each in seconds)
            print(f"| {model} | {nodes} | {share:,.1f} | {shown} |")


def main() -> None:
    cases = json.loads((HERE / "results.json").read_text())
    for case in cases:
        print(row(case))
    plot(cases)
    estimate(cases)


if __name__ == "__main__":
    main()
