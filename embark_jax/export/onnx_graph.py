"""The dense layers as an ONNX graph, by jax2onnx."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embark_jax.export.dense_model import DenseModel
from embark_jax.export.exported import CALL, ExportError, onnx_file
from embark_jax.export.onnx_layers import EMBEDDING, EXTRA, VALID, Arrays, onnx_layers
from embark_jax.train.step import MATMUL_PRECISION

OTHERWISE = "or leave the graph out with --no-onnx: dense.jax takes any model"
SAMPLES = 3
"""Samples on which each graph is compared with JAX."""
TOLERANCE = 1e-4
"""Largest difference from JAX, as a share of the largest result."""


def require_jax2onnx() -> None:
    """Raises ``ExportError`` if jax2onnx or onnxruntime is not installed."""
    try:
        import jax2onnx as jax2onnx
        import onnxruntime as onnxruntime
    except ImportError as error:
        raise ExportError(
            f"{onnx_file(CALL)}: {error.name} is needed to write it; {EXTRA}, "
            f"{OTHERWISE}"
        ) from None


def write_graphs(folder: Path, model: DenseModel, arrays: Arrays) -> None:
    """Writes ``model.onnx`` and the graphs of towers, and compares each with JAX.

    Inputs are ``dense`` ``[batch, dense_features]``, ``embeddings.FEATURE``, and of
    sequences ``valid.FEATURE`` ``[batch, hotness]``, which is true where there is an
    event; the output is ``logits``, or ``vectors`` of a tower, which has only the
    inputs that it reads. All is computed in float32.

    Args:
      folder: the export.
      model: the dense part of the model.
      arrays: its parameters, by dotted path.

    Raises:
      ExportError: if jax2onnx has no form of an operation of the model, onnxruntime
        does not take the graph, or it gives other results.
    """
    model = model.in_float32()  # onnxruntime has few operations in bfloat16 on CPUs
    for method in model.methods:
        path = folder / onnx_file(method)
        path.write_bytes(_graph(path, model, method, arrays))
        _compare(path, model, method, arrays)


def _graph(path: Path, model: DenseModel, method: str, params: Arrays) -> bytes:
    """Returns a graph, whose constants are the model's parameters. Inputs that nothing
    reads are left out of a tower's."""
    import jax2onnx

    dense, embeddings, valid = model.shapes("B")
    constants = jax.tree.map(jnp.asarray, dict(params))

    def forward(dense, *others):
        inputs = iter(others)
        return model(
            constants,
            dense,
            dict(zip(embeddings, inputs, strict=False)),
            dict(zip(valid, inputs, strict=True)),
            method,
            in_turn=True,  # jax2onnx has no scatter of batches
        )

    inputs: dict[str, Any] = {"dense": dense}
    inputs |= {EMBEDDING + name: shape for name, shape in embeddings.items()}
    inputs |= {VALID + name: shape for name, shape in valid.items()}
    try:
        with _quiet():
            model_proto: Any = jax2onnx.to_onnx(
                forward,
                list(inputs.values()),
                input_names=list(inputs),
                output_names=["logits" if method == CALL else "vectors"],
            )
    except Exception as error:  # of any class, for want of one of jax2onnx's own
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise ExportError(
            f"{path.name}: jax2onnx cannot convert it: {first}; compute it otherwise, "
            f"{OTHERWISE}"
        ) from error
    if method != CALL:
        graph = model_proto.graph
        read = {name for node in graph.node for name in node.input}
        kept = [each for each in graph.input if each.name in read]
        del graph.input[:]
        graph.input.extend(kept)
    return model_proto.SerializeToString()


def draw_inputs(model: DenseModel, samples: int) -> tuple[Any, Any, Any]:
    """Returns made-up inputs of samples, whose sequences have events here and there."""
    generator = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        numbers = generator.normal(size=leaf.shape)
        return numbers > 0 if leaf.dtype == bool else numbers.astype(np.float32)

    return jax.tree.map(draw, model.shapes(samples))


def _compare(path: Path, model: DenseModel, method: str, arrays: Arrays) -> None:
    """Raises ``ExportError`` unless a graph gives the results of JAX."""
    drawn = draw_inputs(model, SAMPLES)
    with jax.default_matmul_precision(MATMUL_PRECISION):
        on_device, *inputs = jax.tree.map(jnp.asarray, (dict(arrays), *drawn))
        expected = np.asarray(model(on_device, *inputs, method=method), np.float32)
    results = onnx_layers(path)(*drawn)
    scale = np.abs(expected).max(initial=1, where=np.isfinite(expected))
    if results.shape != expected.shape or not np.allclose(
        results, expected, rtol=0, atol=TOLERANCE * scale, equal_nan=True
    ):
        raise ExportError(
            f"{path.name}: onnxruntime gives {results.ravel()[:SAMPLES]} where JAX "
            f"gives {expected.ravel()[:SAMPLES]}; compute it otherwise, {OTHERWISE}"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences what jax2onnx and its library log and warn about each graph."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        logging.disable(level)
