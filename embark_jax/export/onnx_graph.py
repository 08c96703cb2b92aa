"""The dense layers as an ONNX graph, by jax2onnx.

A graph holds no numbers of the model: it names those of ``dense.safetensors`` beside
it, so that other numbers are another file, and the same graph.
"""

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

from embark_jax.export.arrays import locations
from embark_jax.export.dense_layers import (
    EMBEDDING,
    EXTRA,
    PARAM,
    Arrays,
    OnnxLayers,
)
from embark_jax.export.dense_model import DenseModel
from embark_jax.export.description import DENSE, ONNX, ExportError
from embark_jax.train.step import MATMUL_PRECISION
from embark_jax.train.step_model import CALL

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
            f"{ONNX}: {error.name} is needed to write it; {EXTRA}, {OTHERWISE}"
        ) from None


def write_graphs(folder: Path, model: DenseModel, arrays: Arrays) -> None:
    """Writes ``model.onnx`` and the graphs of towers, and compares each with JAX.

    Inputs are ``dense`` ``[batch, dense_features]`` and ``embeddings.FEATURE``; the
    output is ``logits``, or ``vectors`` of a tower, which has only the inputs that it
    reads. All is computed in float32.

    Args:
      folder: an export that has ``dense.safetensors``.
      model: the dense part of the model.
      arrays: the contents of that file.

    Raises:
      ExportError: if jax2onnx has no form of an operation of the model, onnxruntime
        does not take the graph, or it gives other results.
    """
    model = model.in_float32()  # onnxruntime has few operations in bfloat16 on CPUs
    for method in model.methods:
        path = folder / (ONNX if method == CALL else f"{method}.onnx")
        path.write_bytes(_graph(path, model, method))
        _compare(path, model, method, arrays)


def _graph(path: Path, model: DenseModel, method: str) -> bytes:
    """Returns a graph beside ``dense.safetensors``."""
    import jax2onnx

    # An ONNX graph cannot have an input without elements that it reshapes.
    empty = {
        n: jnp.zeros(a.shape, a.dtype) for n, a in model.arrays.items() if not a.size
    }
    names = [name for name in model.arrays if name not in empty]
    features = list(model.embedding_shapes)

    def forward(*inputs):
        arrays = dict(zip(names, inputs, strict=False))
        dense, *embeddings = inputs[len(names) :]
        embeddings = dict(zip(features, embeddings, strict=True))
        return model(arrays | empty, dense, embeddings, method)

    inputs: dict[str, Any] = {PARAM + name: model.arrays[name] for name in names}
    inputs["dense"] = "B", model.dense_features
    inputs |= {EMBEDDING + n: ("B", *s) for n, s in model.embedding_shapes.items()}
    try:
        with _quiet():
            graph = jax2onnx.to_onnx(
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
    _link(graph, path.with_name(DENSE), keep_inputs=method == CALL)
    return graph.SerializeToString()


def _link(model: Any, path: Path, keep_inputs: bool) -> None:
    """Makes inputs for arrays name those of a file; inputs for samples that nothing
    reads go, but for ``keep_inputs``."""
    import onnx

    graph = model.graph
    read = {name for node in graph.node for name in node.input}
    samples = [
        graph_input
        for graph_input in graph.input
        if not graph_input.name.startswith(PARAM)
        if keep_inputs or graph_input.name in read
    ]
    del graph.input[:]
    graph.input.extend(samples)
    for name, array in locations(path).items():
        if PARAM + name not in read:
            continue
        tensor = onnx.TensorProto(
            name=PARAM + name,
            dims=array.shape,
            data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in (
            ("location", path.name),
            ("offset", array.offset),
            ("length", array.bytes),
        ):
            tensor.external_data.add(key=key, value=str(value))
        graph.initializer.append(tensor)
        model.metadata_props.add(key=PARAM + name)


def _compare(path: Path, model: DenseModel, method: str, arrays: Arrays) -> None:
    """Raises ``ExportError`` unless a graph gives the results of JAX."""
    generator = np.random.default_rng(0)
    drawn = jax.tree.map(
        lambda leaf: generator.normal(size=leaf.shape).astype(np.float32),
        model.shapes(SAMPLES),
    )
    with jax.default_matmul_precision(MATMUL_PRECISION):
        on_device = jax.tree.map(jnp.asarray, dict(arrays))
        expected = np.asarray(model(on_device, *drawn, method=method), np.float32)
    results = OnnxLayers(path)(*drawn)
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
