"""Trains on time windows in four ways, and tests each on the window that comes next.

    python experiments/daily/run.py movielens
    python experiments/daily/run.py synthetic
    python experiments/daily/run.py plot

Each writes a JSON of its own beside this file; ``plot`` draws both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from rich.console import Console

import embark_jax as ej
from embark_jax.config import ExperimentConfig
from embark_jax.data import movielens_100k_folder
from embark_jax.data.prepare import own_files
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.run import Options, prepare
from embark_jax.export.writing import export_run
from embark_jax.plans.tables import DYNAMIC_KEYS
from embark_jax.run.logs import read_metrics
from embark_jax.run.training import train

HERE = Path(__file__).parent
WAYS = ("from scratch", "warm start", "one run on windows", "dynamic")
COLUMNS = Columns()


class Problem(NamedTuple):
    """Data in windows.

    Attributes:
      windows: the samples of each window.
      rows: room of each table for all values that will ever come.
      batch_size: samples a step.
      dim: width of the rows.
    """

    windows: list[pa.Table]
    rows: dict[str, int]
    batch_size: int
    dim: int


def movielens(weeks: int = 2) -> Problem:
    """MovieLens-100k, cut by time; a film is liked from 4 stars on."""
    folder = movielens_100k_folder()
    tab = csv.ParseOptions(delimiter="\t")
    ratings = csv.read_csv(folder / "ml-100k.inter", parse_options=tab)
    stars, when = (ratings[f"{n}:float"].to_numpy() for n in ("rating", "timestamp"))
    table = pa.table(
        {
            "label": (stars >= 4).astype(np.int64),
            "user": ratings["user_id:token"],
            "item": ratings["item_id:token"],
        }
    )
    number = ((when - when.min()) // (weeks * 7 * 86_400)).astype(int)
    windows = [table.filter(pa.array(number == i)) for i in range(number.max() + 1)]
    windows = [window for window in windows if len(window) >= 128]
    return Problem(windows, {"user": 1000, "item": 1700}, 128, 16)


def synthetic(days: int = 6, samples: int = 300_000) -> Problem:
    """Clicks that drift: each day a tenth of users and items is new, and the taste of
    users for groups of items turns."""
    rng = np.random.default_rng(0)
    users, items, groups, step = samples // 5, samples // 10, 8, 0.1
    total_users, total_items = (int(n * (1 + days * step)) for n in (users, items))
    taste = rng.normal(size=(total_users, groups))
    turning = rng.normal(size=(total_users, groups))
    group, quality = (
        rng.integers(groups, size=total_items),
        rng.normal(size=total_items),
    )
    windows = []
    for day in range(days):
        first = int(day * step * users), int(day * step * items)
        user = first[0] + (rng.random(samples) ** 2 * users).astype(np.int64)
        item = first[1] + (rng.random(samples) ** 2 * items).astype(np.int64)
        angle = np.pi / 2 * day / days
        now = np.cos(angle) * taste[user] + np.sin(angle) * turning[user]
        logit = 1.5 * now[np.arange(samples), group[item]] + quality[item]
        label = rng.random(samples) < 1 / (1 + np.exp(-logit))
        columns = {"label": label.astype(np.int64), "user": user, "item": item}
        windows.append(pa.table(columns))
    rows = {"user": total_users + users // 20, "item": total_items + items // 10}
    return Problem(windows, rows, 512, 16)


def config_of(
    problem: Problem, data: dict[str, Any], **options: Any
) -> ExperimentConfig:
    tables = {name: {"rows": rows} for name, rows in problem.rows.items()}
    if options.pop("dynamic", False):
        first = {n: len(problem.windows[0][n].unique()) for n in problem.rows}
        tables = {
            name: {"expected_keys": [first[name], rows], "max_slots": rows}
            for name, rows in problem.rows.items()
        }
    return ExperimentConfig.model_validate(
        {
            "name": "daily",
            "data": data,
            "model": {"kind": "dcn", "cross_layers": 2, "deep": [64, 32]},
            "embedding": {"dim": problem.dim, "tables": tables},
            "train": {
                "batch_size": problem.batch_size,
                "log_every": 1000,
                "keep_checkpoints": 100,
                **options,
            },
        }
    )


def prepared(folder: Path, samples: pa.Table, name: str, **options: Any) -> Path:
    """Prepares samples, all of them for training."""
    raw, out = folder / f"{name}.parquet", folder / "prepared" / name
    pq.write_table(samples, raw)
    extend = options.pop("extend", None)
    recipe = own_files.parquet(raw, COLUMNS)
    made_from = {"dataset": "parquet", "columns": COLUMNS.model_dump(mode="json")}
    prepare(recipe, out, Options(split="none", **options), made_from, extend=extend)
    return out


def run(config: ExperimentConfig, workdir: Path) -> None:
    train(config, workdir, False, Console(quiet=True))


def auc_of(scorer: ej.Scorer, samples: pa.Table) -> float:
    metrics = scorer.evaluate(samples)[1]
    assert metrics is not None
    assert metrics.auc is not None
    return float(metrics.auc)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def one_by_one(
    problem: Problem, folder: Path, warm: bool
) -> Iterator[tuple[float, float, int]]:
    """Yields AUC of the next window, CPU seconds, and bytes published, for each window
    that has a next one: a run on all samples so far, or one that starts from the run
    before and sees the new ones."""
    scorer, before = None, None
    for day, samples in enumerate(problem.windows[:-1]):
        begin = time.process_time()
        options: dict[str, Any] = {"epochs": 1.0}
        if not warm:
            samples = pa.concat_tables(problem.windows[: day + 1])
        elif day:
            options["init_from"] = str(folder / f"run {day - 1}")
        data = prepared(folder, samples, f"{day:02}", extend=before)
        before = data if warm else None
        section = {"kind": "prepared", "path": str(data)}
        run(config_of(problem, section, **options), folder / f"run {day}")
        seconds = time.process_time() - begin
        out = folder / ("chain" if warm else f"export {day}")
        link = export_run(folder / f"run {day}", out, onnx=False, append=warm)
        if scorer is not None and warm:
            scorer.refresh()
        else:
            scorer = ej.load_scorer(out)
        auc = auc_of(scorer, problem.windows[day + 1])
        yield auc, seconds, size_of(link)


def on_windows(
    problem: Problem, folder: Path, dynamic: bool
) -> Iterator[tuple[float, float, int]]:
    """Yields the same of one run on all windows, of tables with room, or dynamic ones;
    its seconds are divided evenly."""
    begin, before = time.process_time(), None
    keys = {"hash_columns": dict.fromkeys(problem.rows, DYNAMIC_KEYS)}
    for day, samples in enumerate(problem.windows):
        options: dict[str, Any] = keys if dynamic else {"extend": before}
        before = prepared(folder, samples, f"{day:02}", **options)
    section = {"kind": "windows", "path": str(folder / "prepared")}
    run(config_of(problem, section, dynamic=dynamic), folder / "run")
    seconds = (time.process_time() - begin) / len(problem.windows)
    records = [r for r in read_metrics(folder / "run") if "window" in r]
    for record in records[1:]:
        step = record["step"]
        link = export_run(
            folder / "run", folder / "chain", step, onnx=False, append=True
        )
        yield record["validation_auc"], seconds, size_of(link)


def measured(problem: Problem, way: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if way in WAYS[:2]:
            figures = list(one_by_one(problem, folder, way == "warm start"))
        else:
            figures = list(on_windows(problem, folder, way == "dynamic"))
    auc, seconds, size = zip(*figures, strict=True)
    return {"auc": list(auc), "seconds": list(seconds), "bytes": list(size)}


def show(result: dict[str, Any]) -> None:
    weights = np.array(result["samples"][1:])
    print("| way | AUC of the next window | CPU seconds a window | bytes of the last |")
    print("|---|---|---|---|")
    for way, figures in result["ways"].items():
        auc = np.average(figures["auc"], weights=weights)
        seconds, last = np.mean(figures["seconds"]), figures["bytes"][-1]
        print(f"| {way} | {auc:.4f} | {seconds:.1f} | {last:,} |")


def plot() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.5), layout="constrained")
    names = [n for n in ("movielens", "synthetic") if (HERE / f"{n}.json").exists()]
    for axes, name in zip(
        figure.subplots(1, len(names), squeeze=False)[0], names, strict=True
    ):
        result = json.loads((HERE / f"{name}.json").read_text())
        for way, figures in result["ways"].items():
            axes.plot(
                range(1, 1 + len(figures["auc"])), figures["auc"], "o-", label=way
            )
        axes.set(title=name, xlabel="window", ylabel="AUC, before it is trained on")
        axes.legend(frameon=False)
    figure.savefig(HERE / "daily.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("movielens", "synthetic", "plot"))
    parser.add_argument("--windows", type=int, help="the first windows alone")
    parser.add_argument("--ways", nargs="*", default=WAYS)
    arguments = parser.parse_args()
    if arguments.what == "plot":
        plot()
        return
    warnings.filterwarnings("ignore", "column .* training did not know")
    problem = movielens() if arguments.what == "movielens" else synthetic()
    problem = problem._replace(windows=problem.windows[: arguments.windows])
    path = HERE / f"{arguments.what}.json"
    result: dict[str, Any] = {"samples": list(map(len, problem.windows)), "ways": {}}
    for way in arguments.ways:
        result["ways"][way] = measured(problem, way)
        print(way, result["ways"][way], flush=True)
        if arguments.windows is None:
            path.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
