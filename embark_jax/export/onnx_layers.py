"""The dense layers of a model as a function of arrays in host memory, in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from embark_jax.export.exported import REMEDY, ExportError

Arrays = Mapping[str, np.ndarray]
DenseLayers = Callable[[np.ndarray, Arrays, Arrays], np.ndarray]
"""``(dense, embeddings, valid) -> logits``: float32 ``[n, dense_features]``, each
feature's ``[n, …]``, and bool ``[n, hotness]`` of each sequence, which says where it
has an event; n is at most BATCH, and logits are ``[n]`` or ``[n, tasks]``."""
BATCH = 4096
"""Number of samples that are scored at once."""
EXTRA = 'pip install "embark_jax[onnx]"'
EMBEDDING = "embeddings."
"""Prefix of the names of features in a graph."""
VALID = "valid."
"""Prefix of the names of sequences in a graph, which say where they have events."""
_ERRORS_ALONE = 3
"""Severity of what onnxruntime logs."""


def onnx_layers(path: Path) -> DenseLayers:
    """Returns a graph, computed by onnxruntime.

    Args:
      path: a ``model.onnx``, or the graph of a tower, which may take some of the
        features.

    Raises:
      ExportError: if onnxruntime is not installed, or does not take the graph.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ExportError(
            f"{path}: onnxruntime is needed to score with it; {EXTRA}"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ALONE
    try:
        session = onnxruntime.InferenceSession(
            path, options, providers=onnxruntime.get_available_providers()
        )
    except Exception as error:  # onnxruntime's errors have no class of their own
        raise ExportError(
            f"{path}: onnxruntime does not take it ({error}); {REMEDY}"
        ) from error
    names = [graph_input.name for graph_input in session.get_inputs()]

    def layers(dense: np.ndarray, embeddings: Arrays, valid: Arrays) -> np.ndarray:
        inputs = {EMBEDDING + name: array for name, array in embeddings.items()}
        inputs |= {VALID + name: array for name, array in valid.items()}
        inputs["dense"] = dense
        (results,) = session.run(None, {name: inputs.get(name) for name in names})
        return np.asarray(results)

    return layers
