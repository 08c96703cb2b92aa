"""Recommendation models in Flax NNX, from dense features and embeddings to logits.

Each model of the registry, ``config.models.MODELS``, is a name here, such as ``DLRM``.
"""

import pkgutil
from typing import Any

from embark_jax.config.models import MODELS
from embark_jax.models.build import build as build
from embark_jax.models.footprint import footprint as footprint
from embark_jax.models.function import FunctionModel as FunctionModel
from embark_jax.models.function import ModelWithLoss as ModelWithLoss
from embark_jax.models.interface import Joined as Joined
from embark_jax.models.interface import JoinedModel as JoinedModel
from embark_jax.models.interface import Masked as Masked
from embark_jax.models.interface import MaskedModel as MaskedModel
from embark_jax.models.interface import Packed as Packed
from embark_jax.models.interface import PackedModel as PackedModel
from embark_jax.models.interface import joined as joined

_CLASSES = {path.partition(":")[2]: path for path in MODELS.values()}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(_CLASSES[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
