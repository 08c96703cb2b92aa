"""How many samples are all-hot, over the number of hot rows; draws all_hot.svg.

    python experiments/hot_batches/curves.py [--criteo FILE]

Of data that are here it counts; of others it calculates, from the sizes of tables and a
power law a column, with columns independent of each other.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from embark_jax import planner
from embark_jax.config import reading
from embark_jax.data import MovieLens100K
from embark_jax.statistics.histogram import Histogram
from embark_jax.statistics.skew import Zipf, row_probabilities

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
POINTS = 200
FAE_TERABYTE = 0.007, 0.82
"""Share of rows that are hot, and of samples that are all-hot: FAE, Terabyte data."""

Curve = tuple[np.ndarray, np.ndarray]
"""Hot rows, and the share of samples that look up no other."""


def counted(train: np.ndarray, samples: np.ndarray, rows: int) -> Curve:
    """Of ``samples``, where the rows are hot that ``train`` looks up the most.

    Args:
      train, samples: ``[samples, ids]`` rows, numbered through all tables; -1 is none.
      rows: of all tables.
    """
    counts = np.bincount(train[train >= 0], minlength=rows)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(rows + 1, np.int64)
    rank[order] = np.arange(rows)
    rank[:-1][counts == 0] = rows  # never hot: nothing is known of it
    rank[-1] = -1  # of no id
    coldest = np.sort(rank[samples].max(axis=1))
    hot = np.unique(np.geomspace(1, rows, POINTS).astype(np.int64))
    return hot, np.searchsorted(coldest, hot) / len(samples)


def calculated(tables: Mapping[str, tuple[int, float]]) -> Curve:
    """Where each column draws from its table by a power law, whatever the others draw.

    Args:
      tables: rows and exponent; one id a sample.
    """
    laws = [
        row_probabilities(rows, Zipf(exponent)) for rows, exponent in tables.values()
    ]
    coldest = np.geomspace(1.0, min(p.min() for p, _ in laws), POINTS)
    hot, share = np.zeros(POINTS), np.ones(POINTS)
    for probability, count in laws:  # falling
        last = np.searchsorted(-probability, -coldest, side="right")
        hot += np.append(0.0, np.cumsum(count))[last]
        share *= np.append(0.0, np.cumsum(probability * count))[last]
    return hot, np.minimum(share, 1.0)


def movielens() -> dict[str, Curve]:
    """Of its training samples, and of its test samples by the rows of the former."""
    data = MovieLens100K()
    sizes = np.array(list(data.table_rows.values()))
    first = dict(zip(data.table_rows, np.cumsum(sizes) - sizes, strict=True))

    def numbered(batch):
        return np.concatenate(
            [
                np.where(batch.ids[f.name] < 0, -1, batch.ids[f.name] + first[f.table])
                for f in data.features
            ],
            axis=1,
        )

    train = numbered(data.train_batch(0, data.train_samples))
    test = numbered(next(data.test_batches(10_000)))
    rows = sizes.sum()
    return {
        "MovieLens-100k, training samples": counted(train, train, rows),
        "MovieLens-100k, test samples": counted(train, test, rows),
    }


def table_rows(name: str) -> dict[str, int]:
    config = reading.load(CONFIGS / "experiments" / name / "dlrm.yaml")
    return {t: each.rows for t, each in config.embedding.tables.items() if each.rows}


def fitted(path: Path, rows: Mapping[str, int]) -> dict[str, tuple[int, float]]:
    """Each table with the exponent that a sample's column fits best."""
    with path.open() as file:
        lines = list(csv.DictReader(file))
    found = {}
    for table, count in rows.items():
        seen = np.unique([line[table] for line in lines], return_counts=True)[1]
        seen = np.sort(seen)[::-1].astype(np.int64)
        histogram = Histogram.from_counts(np.arange(len(seen)), seen)
        found[table] = count, histogram.zipf_exponent(count)
    return found


def sample_curve(path: Path, columns: list[str]) -> Curve:
    """Of half of a sample, by the rows that the other half looks up."""
    with path.open() as file:
        lines = list(csv.DictReader(file))
    values = [(column, line[column]) for line in lines for column in columns]
    number = {value: i for i, value in enumerate(dict.fromkeys(values))}
    ids = np.array([number[value] for value in values]).reshape(len(lines), -1)
    return counted(ids[::2], ids[1::2], len(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--criteo", type=Path, required=True, help="sample, CSV")
    parser.add_argument("--avazu", type=Path, required=True, help="sample, CSV")
    asked = parser.parse_args()
    criteo, avazu = table_rows("criteo_kaggle"), table_rows("avazu")
    fits = {"Criteo Kaggle": fitted(asked.criteo, criteo)}
    fits["Avazu"] = fitted(asked.avazu, avazu)
    terabyte = planner.load_table_list("rmc3").tables
    fits["Criteo Terabyte, all 1.05"] = {
        str(each.name): (each.rows, 1.05) for each in terabyte
    }
    counted_curves = movielens()
    counted_curves["Criteo Kaggle, 2,000 records, half by half"] = sample_curve(
        asked.criteo, list(criteo)
    )
    calculated_curves = {name: calculated(tables) for name, tables in fits.items()}
    draw(counted_curves, calculated_curves, fits)
    report(counted_curves | calculated_curves)
    exponents = {
        n: {t: round(e, 2) for t, (_, e) in f.items()} for n, f in fits.items()
    }
    (HERE / "exponents.json").write_text(json.dumps(exponents, indent=1) + "\n")


def draw(
    counted_curves: Mapping[str, Curve],
    calculated_curves: Mapping[str, Curve],
    fits: Mapping[str, Mapping[str, tuple[int, float]]],
) -> None:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, (hot, share) in counted_curves.items():
        left.plot(hot, share, label=name)
    left.set(
        xlabel="hot rows", ylabel="share of samples that are all-hot", xscale="log"
    )
    for name, (hot, share) in calculated_curves.items():
        rows = sum(count for count, _ in fits[name].values())
        right.plot(hot / rows, share, label=name)
    right.plot(*FAE_TERABYTE, "kx", label="Criteo Terabyte, FAE")
    right.set(xlabel="hot rows, share of all", xscale="log", xlim=(1e-6, 1))
    left.set_title("counted")
    right.set_title("calculated: columns independent")
    for axes in (left, right):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(HERE / "all_hot.svg", metadata={"Date": None})


def report(curves: Mapping[str, Curve]) -> None:
    """How many rows make so many samples all-hot, in Markdown."""
    wanted = (0.25, 0.5, 0.75, 0.9)
    print("| samples all-hot | " + " | ".join(f"{each:.0%}" for each in wanted) + " |")
    print("|---" * (len(wanted) + 1) + "|")
    for name, (hot, share) in curves.items():
        cells = [
            f"{np.interp(each, share, hot):,.0f}" if share[-1] >= each else "–"
            for each in wanted
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
