"""The dense layers of a model as a function of arrays in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from embark_jax.export.description import MEND, ExportError

Arrays = Mapping[str, np.ndarray]
BATCH = 4096
"""Number of samples that are scored at once."""
EXTRA = 'pip install "embark_jax[onnx]"'
PARAM, EMBEDDING = "params.", "embeddings."
"""Prefixes of the names of parameters and of features in a graph."""
_ERRORS_ALONE = 3
"""Severity of what onnxruntime logs."""


class DenseLayers(Protocol):
    """Dense layers with their parameters."""

    def __call__(self, dense: np.ndarray, embeddings: Arrays) -> np.ndarray:
        """Returns logits ``[n]`` or ``[n, tasks]``.

        Args:
          dense: ``[n, dense_features]`` float32; n is at most BATCH.
          embeddings: each feature's embedding, ``[n, …]`` float32.
        """
        ...

    def with_params(self, params: Arrays) -> DenseLayers:
        """Returns the same layers with other parameters, by dotted path."""
        ...


class OnnxLayers:
    """A graph beside its parameters, computed by onnxruntime.

    Args:
      path: a ``model.onnx``, or the graph of a tower, which may take some of the
        features.
      params: parameters in place of those beside the graph, by their names in it.

    Raises:
      ExportError: if onnxruntime is not installed, or does not take the graph.
    """

    def __init__(self, path: Path, params: Arrays | None = None):
        try:
            import onnxruntime
        except ImportError:
            raise ExportError(
                f"{path}: onnxruntime is needed to score with it; {EXTRA}"
            ) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ALONE
        for name, array in (params or {}).items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            options.add_external_initializers([name], [value])
        try:
            self._session = onnxruntime.InferenceSession(
                path, options, providers=onnxruntime.get_available_providers()
            )
        except Exception as error:  # onnxruntime's errors have no class of their own
            raise ExportError(
                f"{path}: onnxruntime does not take it ({error}); {MEND}"
            ) from error
        self._path = path
        self._inputs = [graph_input.name for graph_input in self._session.get_inputs()]

    def __call__(self, dense: np.ndarray, embeddings: Arrays) -> np.ndarray:
        inputs = {EMBEDDING + name: array for name, array in embeddings.items()}
        inputs["dense"] = dense
        (results,) = self._session.run(None, {n: inputs[n] for n in self._inputs})
        return np.asarray(results)

    def with_params(self, params: Arrays) -> OnnxLayers:
        named = {PARAM + name: array for name, array in params.items()}
        in_graph = self._session.get_modelmeta().custom_metadata_map
        return OnnxLayers(self._path, {name: named[name] for name in in_graph})
