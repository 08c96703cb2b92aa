"""The ``model`` section of a config, made from the constructor of the model."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeInt,
    create_model,
    model_validator,
)

from embark_jax._base.config import DESCRIBED, Config
from embark_jax.config.own import OWN_KIND, OwnConfig

MODELS = {
    "dlrm_dcnv2": "embark_jax.models.dlrm_dcnv2:DLRMDCNv2",
    "dlrm": "embark_jax.models.dlrm:DLRM",
    "dcn": "embark_jax.models.dcn:DCN",
    "wide_deep": "embark_jax.models.wide_deep:WideDeep",
    "deepfm": "embark_jax.models.deepfm:DeepFM",
    "tbsm": "embark_jax.models.tbsm:TBSM",
    "autoint": "embark_jax.models.autoint:AutoInt",
    "finalmlp": "embark_jax.models.finalmlp:FinalMLP",
    "din": "embark_jax.models.din:DIN",
    "two_tower": "embark_jax.models.two_tower:TwoTower",
    "hstu": "embark_jax.models.hstu:HSTU",
    "dlrm_v4": "embark_jax.models.dlrm_v4:DLRMv4",
    "next_item": "embark_jax.models.next_item:NextItem",
    "mmoe": "embark_jax.models.mmoe:MMoE",
}
"""The registry of models: the class of each ``kind``, imported when a config names
it."""
NO_MODEL = "none"


class ModelConfig(Config):
    """The dense model. Its keys are the arguments of the class that ``kind`` names."""

    kind: str = "dlrm_dcnv2"

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, given: Any, handler: Any) -> Any:
        if cls is not ModelConfig or not isinstance(given, Mapping):
            return handler(given)
        kind = str(given.get("kind", "dlrm_dcnv2"))
        if ":" in kind:
            return OwnModelConfig.model_validate(given)
        if kind == NO_MODEL:
            return NoModelConfig.model_validate(given)
        if kind not in MODELS:
            kinds = ", ".join([*MODELS, NO_MODEL, OWN_KIND])
            raise ValueError(f"kind is {kind!r}, must be one of {kinds}")
        return section_of(kind).model_validate(given)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        if cls is not ModelConfig:
            return handler(core_schema)
        kinds = cls.of_all_kinds()
        return {"anyOf": [handler(each.__pydantic_core_schema__) for each in kinds]}

    @classmethod
    def of_all_kinds(cls):
        if cls is not ModelConfig:
            return [cls]
        return [*map(section_of, MODELS), NoModelConfig, OwnModelConfig]


class NoModelConfig(ModelConfig):
    """No model: tables alone, which are planned and simulated below dense layers of
    which only two numbers are known, and are not trained."""

    kind: str = NO_MODEL
    parameters: NonNegativeInt = 0
    """Parameters of the dense layers."""
    kept_bytes: NonNegativeInt = 0
    """Bytes a sample that their backward needs from forward."""


class OwnModelConfig(OwnConfig, ModelConfig):
    """Your own model. The object that ``kind`` names is called as
    ``Name(embedding_shapes, dense_features, **options, rngs=rngs)`` and returns the
    model. A model for several labels has them as its option ``tasks``."""

    model_config = ConfigDict(extra="allow")


@functools.cache
def section_of(kind: str) -> Any:
    """Returns the section of a model of the registry: the arguments that its
    constructor takes by position after the shapes of its inputs, each with its type,
    default, and text in the docstring."""
    model = pkgutil.resolve_name(MODELS[kind])
    # Flax's metaclass hides the signature of the class itself.
    parameters = inspect.signature(model.__init__).parameters.values()
    types = get_type_hints(model.__init__, include_extras=True)
    summary, texts = _documented(model)

    def text(name: str) -> dict[str, Any]:
        """Returns what the docstring says; of other keys their types have it."""
        return {"description": texts[name]} if name in texts else {}

    fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
    fields |= {
        each.name: (
            types[each.name],
            Field(
                ... if each.default is each.empty else each.default, **text(each.name)
            ),
        )
        for each in list(parameters)[3:]
        if each.kind is each.POSITIONAL_OR_KEYWORD
    }
    return create_model(
        f"{model.__name__}Config",
        __base__=ModelConfig,
        __doc__=summary,
        __cls_kwargs__=DESCRIBED,
        **fields,
    )


def _documented(model: Any) -> tuple[str, dict[str, str]]:
    """Returns the first paragraph of a docstring, and its texts of arguments by
    name."""
    text, _, arguments = inspect.cleandoc(model.__doc__).partition("\nArgs:\n")
    entry = r"^  (\w[\w, ]*): (.*(?:\n    .*)*)"
    return text.partition("\n\n")[0], {
        name: words[0].upper() + re.sub(r"\s+", " ", words[1:])
        for names, words in re.findall(entry, arguments, re.MULTILINE)
        for name in names.split(", ")
    }


def items_of(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the features of which a model that ranks items makes the vector of one,
    by its config; () of a model of probabilities, and of your own."""
    if model["kind"] == "two_tower":
        return tuple(model["items"])
    return tuple(model["history"].values()) if model["kind"] == "next_item" else ()


def negatives_of(model: ModelConfig) -> tuple[str, int] | None:
    """Returns the item and the number of uniform negatives of a sample of a model that
    has some."""
    options = model.model_dump()
    items, number = items_of(options), options.get("uniform_negatives")
    return (items[0], number) if items and number else None


def tasks_of(model: ModelConfig) -> tuple[str, ...]:
    """Returns the names of a model's tasks, if it has several; otherwise ()."""
    return tuple(getattr(model, "tasks", ()))
