"""Builds a model from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from flax import nnx

from embark_jax import config as configs
from embark_jax.models.autoint import AutoInt
from embark_jax.models.dcn import DCN
from embark_jax.models.deepfm import DeepFM
from embark_jax.models.din import DIN
from embark_jax.models.dlrm import DLRM
from embark_jax.models.dlrm_dcnv2 import DLRMDCNv2
from embark_jax.models.finalmlp import FinalMLP
from embark_jax.models.function import Model
from embark_jax.models.mmoe import MMoE
from embark_jax.models.tbsm import TBSM
from embark_jax.models.two_tower import TwoTower
from embark_jax.models.wide_deep import WideDeep


def build(
    config: configs.AnyModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    rngs: nnx.Rngs,
) -> Model:
    """Builds the model that ``config`` describes.

    Args:
      config: any of the ``model`` sections.
      embedding_shapes: each feature's embedding shape per sample.
      dense_features: number of dense features.
      rngs: its ``params`` stream draws the weights.

    Raises:
      ValueError: if the embeddings do not suit the model.
      ConfigError: if a user's own model does not exist, or takes other options.
    """
    match config:
        case configs.DLRMDCNv2Config():
            model = DLRMDCNv2
        case configs.DLRMConfig():
            model = DLRM
        case configs.DCNConfig():
            model = DCN
        case configs.WideDeepConfig():
            model = WideDeep
        case configs.DeepFMConfig():
            model = DeepFM
        case configs.TBSMConfig():
            model = TBSM
        case configs.AutoIntConfig():
            model = AutoInt
        case configs.FinalMLPConfig():
            model = FinalMLP
        case configs.DINConfig():
            model = DIN
        case configs.TwoTowerConfig():
            model = TwoTower
        case configs.MMoEConfig():
            model = MMoE
        case configs.OwnModelConfig():
            return _own(config, embedding_shapes, dense_features, rngs)
        case _:
            assert_never(config)
    arguments = config.model_dump(exclude={"kind"})
    return model(embedding_shapes, dense_features, **arguments, rngs=rngs)


def _own(
    config: configs.OwnModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    rngs: nnx.Rngs,
) -> Model:
    arguments = embedding_shapes, dense_features
    model = configs.call_named(config.kind, *arguments, **config.options, rngs=rngs)
    if not isinstance(model, Model):
        raise configs.ConfigError(
            f"{config.kind}: gives a {type(model).__name__}, must give a Flax NNX "
            "module or a models.FunctionModel"
        )
    return model
