"""Prints the table of README.md: mean and, in brackets, largest minus smallest."""

from __future__ import annotations

import statistics

import recipe

NAMES = {
    "dcnv2": "DCN-V2",
    "deepfm": "DeepFM",
    "dlrm": "DLRM",
    "autoint": "AutoInt+",
    "finalmlp": "FinalMLP",
    "din": "DIN",
}
FRAMEWORKS = (
    "embark_jax",
    "embark_jax, bfloat16",
    "embark_jax, dense gradients float32",
    "embark_jax, dense gradients bfloat16",
    "fuxictr",
)


def shown(values: list[float]) -> str:
    spread = max(values) - min(values)
    return f"{statistics.mean(values):.4f} ({spread:.4f})"


def speed(timed: dict, runs: str) -> str:
    found = [r["samples_per_s"] for name, r in timed.items() if name.startswith(runs)]
    return f"{statistics.median(found):,.0f}" if found else ""


def main() -> None:
    results, timed = recipe.results(), recipe.results(recipe.SPEED)
    columns = "model | framework | seeds | test AUC | test log loss | best epoch"
    print(f"| {columns} | samples/s |\n{'|---' * 7}|")
    for model in recipe.MODELS:
        for framework in FRAMEWORKS:
            mine = f"{framework}/{model}/"
            records = [
                record for name, record in results.items() if name.startswith(mine)
            ]
            if not records:
                continue
            column = {key: [r[key] for r in records] for key in records[0]}
            print(
                f"| {NAMES[model]} | {framework} | {len(records)} | "
                f"{shown(column['auc'])} | {shown(column['log_loss'])} | "
                f"{statistics.mean(column['epochs']):.1f} | {speed(timed, mine)} |"
            )


if __name__ == "__main__":
    main()
