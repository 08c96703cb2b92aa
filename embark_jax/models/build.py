"""From a model's config to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from flax import nnx

from embark_jax.config import DLRMConfig, DLRMDCNv2Config
from embark_jax.models.dlrm import DLRM
from embark_jax.models.dlrm_dcnv2 import DLRMDCNv2


def build(
    config: DLRMDCNv2Config | DLRMConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    rngs: nnx.Rngs,
) -> DLRMDCNv2 | DLRM:
    """The model that ``config`` describes.

    Args:
      config: any section of the ``model`` union.
      embedding_shapes: each feature's output shape a sample.
      dense_features: number of dense features.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if the embeddings do not suit the model.
    """
    arguments = config.model_dump(exclude={"kind"})
    match config:
        case DLRMDCNv2Config():
            return DLRMDCNv2(embedding_shapes, dense_features, **arguments, rngs=rngs)
        case DLRMConfig():
            return DLRM(embedding_shapes, dense_features, **arguments, rngs=rngs)
        case _:
            assert_never(config)
