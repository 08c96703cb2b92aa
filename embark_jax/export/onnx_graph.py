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
TOLERANCE_BF16 = 0.05
"""The same of models that JAX computes in bfloat16, with 8 bits of precision."""


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
    for method in model.methods:
        path = folder / (ONNX if method == CALL else f"{method}.onnx")
        graph, has_bf16 = _graph(path, model, method)
        path.write_bytes(graph)
        _compare(path, model, method, arrays, TOLERANCE_BF16 if has_bf16 else TOLERANCE)


def _graph(path: Path, model: DenseModel, method: str) -> tuple[bytes, bool]:
    """Returns a graph beside ``dense.safetensors``, and whether JAX computes some of it
    in bfloat16."""
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
    has_bf16 = _to_float32(graph)
    _link(graph, path.with_name(DENSE), keep_inputs=method == CALL)
    return graph.SerializeToString(), has_bf16


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


def _to_float32(graph: Any) -> bool:
    """Makes all bfloat16 of a graph float32, since onnxruntime has few operations in
    bfloat16 on CPUs; says whether there was any."""
    import onnx

    bf16, float32 = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    changed = False
    for tensor in _tensors(graph.graph):
        if tensor.data_type == bf16:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            changed = True
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == bf16:
                attribute.i = float32
                changed = True
    for value in (*graph.graph.value_info, *graph.graph.output):
        if value.type.tensor_type.elem_type == bf16:
            value.type.tensor_type.elem_type = float32
    return changed


def _tensors(graph: Any) -> Iterator[Any]:
    """Yields the constants of a graph."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _compare(
    path: Path, model: DenseModel, method: str, arrays: Arrays, tolerance: float
) -> None:
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
        results, expected, rtol=0, atol=tolerance * scale, equal_nan=True
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
