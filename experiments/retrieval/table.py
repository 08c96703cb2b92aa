"""Prints the table of README.md: mean Recall@10 and, in brackets, largest minus
smallest."""

from __future__ import annotations

import statistics

import protocol

NAMES = {
    "popular": "most popular films",
    "ItemKNN": "ItemKNN, RecBole",
    "EASE": "EASE, RecBole",
    "BPR": "BPR matrix factorization, RecBole",
    "two_tower": "two towers, embark_jax",
}


def main() -> None:
    results = protocol.results()
    rows = []
    for model, name in NAMES.items():
        if (trial := protocol.chosen(model)) is None:
            continue
        seeds = (0,) if model in protocol.DETERMINISTIC else protocol.SEEDS
        found = [results.get(f"{model}/{trial}/{seed}") for seed in seeds]
        done = [each for each in found if each]
        cells = [name, ", ".join(map(_shown, protocol.TRIALS[model][trial].items()))]
        cells.append(str(len(done)))
        for split in ("validation", "test"):
            values = [each[split] for each in done]
            spread = f" ({max(values) - min(values):.4f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.4f}{spread}")
        rows.append((cells[-1], f"| {' | '.join(cells)} |"))
    print("| model | chosen | seeds | validation | test |\n|---|---|---|---|---|")
    print("\n".join(line for _, line in sorted(rows)))


def _shown(option: tuple[str, float]) -> str:
    return f"{option[0].replace('_', ' ')} {option[1]:g}"


if __name__ == "__main__":
    main()
