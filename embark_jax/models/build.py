"""Builds a model from its config."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from flax import nnx

from embark_jax._base.config import ConfigError
from embark_jax.config import call_named
from embark_jax.config.models import (
    MODELS,
    ModelConfig,
    NoModelConfig,
    OwnModelConfig,
    negatives_of,
)
from embark_jax.models.function import Model


def build(
    config: ModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    rngs: nnx.Rngs,
    values: Mapping[str, int] = MappingProxyType({}),
) -> Model:
    """Builds the model that ``config`` describes.

    Args:
      config: any of the ``model`` sections.
      embedding_shapes: each feature's embedding shape per sample.
      dense_features: number of dense features.
      rngs: its ``params`` stream draws the weights.
      values: number of values of each feature: from those of the item a model with
        uniform negatives draws.

    Raises:
      ValueError: if the embeddings do not suit the model.
      ConfigError: if a user's own model does not exist, or takes other options.
    """
    if isinstance(config, OwnModelConfig):
        return _own(config, embedding_shapes, dense_features, rngs)
    if isinstance(config, NoModelConfig):
        raise ValueError(
            f"kind is {config.kind!r}: tables alone can be planned and simulated; "
            "choose a model, such as model.kind=dlrm_dcnv2"
        )
    model = pkgutil.resolve_name(MODELS[config.kind])
    arguments = config.model_dump(exclude={"kind"})
    if negatives := negatives_of(config):
        arguments["catalog"] = values.get(negatives[0], 1)
    return model(embedding_shapes, dense_features, **arguments, rngs=rngs)


def _own(
    config: OwnModelConfig,
    embedding_shapes: Mapping[str, tuple[int, ...]],
    dense_features: int,
    rngs: nnx.Rngs,
) -> Model:
    arguments = embedding_shapes, dense_features
    model = call_named(config.kind, *arguments, **config.options, rngs=rngs)
    if not isinstance(model, Model):
        raise ConfigError(
            f"{config.kind}: gives a {type(model).__name__}, must give a Flax NNX "
            "module or a models.FunctionModel"
        )
    return model
