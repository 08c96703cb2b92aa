"""The dense layers in JAX, on one device: of a run, or as ``jax.export`` keeps them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from embark_jax.export.dense_model import DenseModel
from embark_jax.export.exported import CALL, REMEDY, ExportError, jax_file
from embark_jax.export.onnx_layers import BATCH, Arrays, DenseLayers
from embark_jax.train.step import MATMUL_PRECISION

PLATFORMS = ("cpu", "cuda")
_SIZES = [BATCH // 4**n for n in range(6, -1, -1)]


def jax_layers(model: Callable[..., jax.Array], params: Arrays) -> DenseLayers:
    """Returns dense layers that are compiled for 1, 4, 16 and so on up to BATCH
    samples, when they are needed: fewer are padded.

    Args:
      model: ``(params, dense, embeddings, valid) -> logits``.
      params: parameters by dotted path.
    """
    compiled = jax.jit(model)
    on_device = jax.tree.map(jnp.asarray, dict(params))

    def layers(dense: np.ndarray, embeddings: Arrays, valid: Arrays) -> np.ndarray:
        samples = len(dense)
        padding = next(size for size in _SIZES if size >= samples) - samples

        def filled(array: np.ndarray) -> np.ndarray:
            return np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))

        inputs = jax.tree.map(filled, (dense, dict(embeddings), dict(valid)))
        with jax.default_matmul_precision(MATMUL_PRECISION):
            logits = compiled(on_device, *inputs)
        return np.asarray(logits)[:samples]

    return layers


def serialized(model: DenseModel, method: str = CALL) -> bytes:
    """Serializes ``(params, dense, embeddings, valid) -> logits``, or vectors of a
    tower, by ``jax.export``, for any batch size, on CPU and CUDA.

    Raises:
      ExportError: if an operation has no serialized form.
    """
    shapes = model.shapes(export.symbolic_shape("batch")[0])
    call = jax.jit(functools.partial(model, method=method))
    exported = export.export(call, platforms=PLATFORMS)
    try:
        return bytes(exported(model.arrays, *shapes).serialize())
    except Exception as error:  # of any class: there are shapes, effects, platforms
        raise ExportError(
            f"{jax_file(method)}: jax.export cannot serialize it: {error}; compute it "
            "otherwise, or score with the run itself"
        ) from error


def read_serialized(path: Path) -> Callable[..., jax.Array]:
    """Reads what ``serialized`` made.

    Raises:
      ExportError: if this version of JAX does not take it.
    """
    try:
        return export.deserialize(bytearray(path.read_bytes())).call
    except Exception as error:  # of any class, as bytes make flatbuffers fail
        first, *_ = str(error).splitlines() or [type(error).__name__]
        raise ExportError(
            f"{path}: jax.export does not take it ({first}); {REMEDY}"
        ) from error
