"""Exports trained models as plain files, and scores with them.

- ``id_scorer``: scores ids, and ``scorer`` raw rows, for which it finds items, too.
  With an export, and what they import (``exported``, ``lookup``, ``onnx_layers``),
  they need neither JAX, but to find items, nor the model's code.
- ``trained``: scores with a checkpoint, in JAX (``dense_model``, ``jax_layers``).
- ``writing``: makes exports, with dense layers in ONNX (``onnx_graph``) and in JAX.
"""

from embark_jax.export.exported import ExportError as ExportError
from embark_jax.export.id_scorer import IdScorer as IdScorer
from embark_jax.export.id_scorer import load_id_scorer as load_id_scorer
from embark_jax.export.scorer import Scorer as Scorer
from embark_jax.export.scorer import load_scorer as load_scorer
