"""Measures how fast exports are scored, and what rows in 8 bits cost in AUC.

    python experiments/scoring/run.py speed [--twins score.py]
    python experiments/scoring/run.py auc

``--twins`` names the ``score.py`` of an export made at commit 4b82b11 or before, whose
models in NumPy are then timed, too. Both print a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import embark_jax as ej
from embark_jax.config import reading
from embark_jax.config.models import MODELS
from embark_jax.export import IdScorer, load_id_scorer
from embark_jax.export.arrays import save_arrays
from embark_jax.export.dense_layers import OnnxLayers
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.jax_layers import JaxLayers
from embark_jax.export.lookup import LookupTable, quantized
from embark_jax.export.onnx_graph import write_graphs
from embark_jax.export.writing import export_run
from embark_jax.metrics.pointwise import evaluate
from embark_jax.run.training import train

ROOT = Path(__file__).parents[2]
SAMPLES, DENSE, DIM, LENGTH, ROWS = 4096, 13, 16, 20, 100_000
TABLES = tuple(ej.TableSpec(f"C{i}", ROWS, DIM) for i in range(26))
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=("speed", "auc"))
    parser.add_argument("--twins", type=Path)
    arguments = parser.parse_args()
    if arguments.question == "speed":
        measure_speed(arguments.twins)
    else:
        measure_auc()


def measure_speed(twins: Path | None) -> None:
    """Prints thousands of samples a second, from ids to logits, of each model."""
    numpy_models = load_module(twins) if twins else None
    ways = ["ONNX", "ONNX, int8", "JAX"] + ["NumPy"] * bool(twins)
    print(f"| model | {' | '.join(ways)} | largest difference |")
    print("|---|" + "---|" * (len(ways) + 1))
    for section in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            rates, difference = speeds(section, Path(folder), numpy_models)
        kind = section.model_fields["kind"].default
        numbers = " | ".join(f"{rates[way]:,.0f}" for way in ways)
        print(f"| `{kind}` | {numbers} | {difference:.1e} |", flush=True)


def speeds(
    section: Any, folder: Path, numpy_models: Any
) -> tuple[dict[str, float], float]:
    """Returns thousands of samples a second by way of scoring, medians of rounds in
    which all take turns, and the largest difference from JAX."""
    config = config_of(section)
    features = features_of(config)
    model = DenseModel(config, TABLES, features, DENSE)
    rng = np.random.default_rng(0)
    params = {
        name: rng.uniform(0.5, 1.5, a.shape).astype(np.float32)
        if "var" in name
        else (rng.normal(size=a.shape) * max(a.shape, default=1) ** -0.5).astype("f4")
        for name, a in model.arrays.items()
    }
    tables = {t.name: rng.normal(size=(ROWS, DIM)).astype(np.float32) for t in TABLES}
    ids = {
        f.name: (rng.zipf(1.2, (SAMPLES, f.hotness)) % ROWS).astype(np.int32)
        for f in features
    }
    dense = rng.normal(size=(SAMPLES, DENSE)).astype(np.float32)
    save_arrays(folder / "dense.safetensors", params)
    write_graphs(folder, model, params)

    def scorer(lookup_tables: dict[str, LookupTable]) -> IdScorer:
        layers = OnnxLayers(folder / "model.onnx")
        return IdScorer(features, DENSE, lookup_tables, layers, params, 0)

    exact = scorer({n: LookupTable(rows) for n, rows in tables.items()})
    small = scorer({n: LookupTable(*quantized(rows)) for n, rows in tables.items()})
    in_jax = IdScorer(
        features, DENSE, exact.tables, JaxLayers(model, params), params, 0
    )
    ways = {
        "ONNX": lambda: exact.logits(dense, ids),
        "ONNX, int8": lambda: small.logits(dense, ids),
        "JAX": lambda: in_jax.logits(dense, ids),
    }
    if numpy_models is not None:
        layers, options = numpy_models.MODELS[config.kind], config.model_dump()

        def in_numpy():
            embeddings = {
                f.name: numpy_models.embed(
                    f.name, tables[f.table], f.pooling, ids[f.name]
                )
                for f in sorted(features, key=lambda feature: feature.name)
            }
            return layers(params, options, dense, embeddings)

        ways["NumPy"] = in_numpy
    logits = {name: way() for name, way in ways.items()}
    seconds = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    expected = logits["JAX"]
    scale = max(1.0, np.abs(expected).max())
    difference = np.abs(logits["ONNX"] - expected).max() / scale
    rates = {n: SAMPLES / statistics.median(s) / 1000 for n, s in seconds.items()}
    return rates, float(difference)


def config_of(section: Any) -> Any:
    """Returns a model with its own defaults, for features of 16 values."""
    values = {
        name: field.examples[0]
        for name, field in section.model_fields.items()
        if field.is_required()
    }
    if "history" in values:
        values["history"] = {"past": "C1"}
    if "items" in values:
        values["items"] = ("C1", "C2", "C3")
    if section.model_fields["kind"].default == "dlrm":
        values["bottom"] = (512, 256, DIM)
    return section(**values)


def features_of(config: Any) -> tuple[ej.FeatureSpec, ...]:
    """Returns a feature for each table, and a sequence if the model reads one."""
    history = getattr(config, "history", {})
    return (
        *(ej.FeatureSpec(table.name) for table in TABLES),
        *(ej.FeatureSpec(n, t, LENGTH, "none") for n, t in history.items()),
    )


def load_module(path: Path) -> Any:
    """Imports a Python file."""
    spec = importlib.util.spec_from_file_location("twins", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_auc() -> None:
    """Prints the test AUC of each MovieLens config, with rows in 32 and in 8 bits."""
    print("| config | float32 | int8 | bytes of rows, float32 | int8 |")
    print("|---|---|---|---|---|")
    for path in sorted((ROOT / "configs/experiments/movielens_100k").glob("*.yaml")):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            config = reading.load(path, ["mesh.nodes=1", "mesh.gpus_per_node=1"])
            train(config, run, resume=False, console=Console(quiet=True))
            aucs, sizes = [], []
            for row_format in ("float32", "int8"):
                out = Path(folder) / row_format
                export_run(run, out, row_format=row_format)
                aucs.append(test_auc(run, load_id_scorer(out)))
                files = (out / "tables").iterdir()
                sizes.append(sum(file.stat().st_size for file in files))
        print(
            f"| {path.stem} | {aucs[0]:.5f} | {aucs[1]:.5f} | {sizes[0]:,} | "
            f"{sizes[1]:,} |",
            flush=True,
        )


def test_auc(run: Path, scorer: IdScorer) -> float:
    """Returns the AUC of the test set."""
    batches = list(ej.load_run(run).data.test_batches(1024))
    logits = [scorer.logits(b.dense, b.ids, b.weights) for b in batches]
    labels = [batch.labels for batch in batches]
    auc = evaluate(np.concatenate(labels), np.concatenate(logits)).auc
    assert auc is not None
    return auc


if __name__ == "__main__":
    main()
