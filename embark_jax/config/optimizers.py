"""Optimizers of rows and of dense parameters, and their schedules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union

from embark_kernels.optimizers import ROW_OPTIMIZERS, WeightDecayMode, parameters
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from typing_extensions import Doc

from embark_jax._base.config import Config, kind_of
from embark_jax.config.own import OWN_KIND
from embark_jax.plans.options import DENSE_OPTIMIZERS, RowOptimizerName


class ConstantScheduleConfig(Config):
    """The whole rate, after a warm-up in which it rises linearly from 0."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""


class CosineScheduleConfig(Config):
    """Half a cosine, after the warm-up, down to ``end_factor`` of the rate
    (https://arxiv.org/abs/1608.03983, without restarts)."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all steps after the warm-up."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class PolynomialScheduleConfig(Config):
    """The whole rate for ``hold_steps`` after the warm-up, then ``(1 - t) ** power``
    down to ``end_factor`` of it; MLPerf's DLRM has power 2."""

    kind: Literal["polynomial"] = "polynomial"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    hold_steps: NonNegativeInt = 0
    """Steps of the whole rate between warm-up and decay."""
    decay_steps: PositiveInt | None = None
    """Steps of the decay; None takes all remaining steps."""
    power: PositiveFloat = 1.0
    """Exponent of the decay; 1 is linear."""
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate at which the decay ends."""


class StepScheduleConfig(Config):
    """A rate that is multiplied by ``factor`` at each of these steps, after a
    warm-up."""

    kind: Literal["steps"] = "steps"
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""
    at: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    """Steps at which the rate changes."""
    factor: PositiveFloat = 0.1
    """Factor of the rate at each of these steps."""


AnyScheduleConfig = (
    ConstantScheduleConfig
    | CosineScheduleConfig
    | PolynomialScheduleConfig
    | StepScheduleConfig
)
ScheduleConfig = Annotated[AnyScheduleConfig, Field(discriminator="kind")]
"""Schedule: the factor of a learning rate, step by step."""


PARAMETERS = {kind: parameters(rule) for kind, rule in ROW_OPTIMIZERS.items()}
"""The parameters of each rule by name, with their types."""
DEFAULTS = {
    kind: {name: getattr(ROW_OPTIMIZERS[kind], name) for name in types}
    for kind, types in PARAMETERS.items()
}
"""Their defaults."""


def _with_own_parameters(
    given: Mapping[str, Any], kind: str, defaults: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns a section with the defaults of its kind."""
    return {**defaults[kind]} | {k: v for k, v in given.items() if v is not None}


class _AnyRuleConfig(Config):
    """The keys that all rules have."""

    kind: RowOptimizerName = "rowwise_adagrad"
    """The rule."""
    learning_rate: PositiveFloat = 0.01
    """Rate of the rows of all tables, before the schedule."""
    weight_decay: NonNegativeFloat = 0.0
    """Decay of touched rows; rows that no id of a batch touches stay as they are."""
    weight_decay_mode: WeightDecayMode = "decoupled"
    """With ``decoupled``, a touched row first loses ``weight_decay`` times the learning
    rate of itself; with ``l2``, ``weight_decay`` times the row is added to its
    gradient."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""


def _with_parameters() -> type[_AnyRuleConfig]:
    """Adds the parameters of all rules, which are None unless they are of the rule."""
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(name for types in PARAMETERS.values() for name in types):
        types = {kind: own[name] for kind, own in PARAMETERS.items() if name in own}
        users: dict[str, list[str]] = {}
        for kind, annotation in types.items():
            (doc,) = (x for x in annotation.__metadata__ if isinstance(x, Doc))
            default = f"{kind} ({DEFAULTS[kind][name]})"
            users.setdefault(doc.documentation, []).append(default)
        text = " ".join(
            f"{doc} For {', '.join(kinds)}." for doc, kinds in users.items()
        )
        annotation = Union[(*types.values(), None)]
        fields[name] = annotation, Field(None, description=text)
    return create_model("_AnyRuleConfig", __base__=_AnyRuleConfig, **fields)


class EmbeddingOptimizerConfig(_with_parameters()):
    """The optimizer of embedding rows, applied once to each touched row. A parameter
    that is not set has the default of the rule."""

    @classmethod
    def keys_of(cls, kind: Any):
        own = PARAMETERS.get(str(kind or kind_of(cls)), {})
        return _AnyRuleConfig.model_fields.keys() | own.keys()

    @model_validator(mode="before")
    @classmethod
    def _has_the_parameters_of_its_rule(cls, given: Any):
        if not isinstance(given, Mapping):
            return given
        kind = str(given.get("kind", kind_of(cls)))
        if kind not in PARAMETERS:
            return given  # which is told where it is
        return _with_own_parameters(given, kind, DEFAULTS)

    @model_validator(mode="after")
    def _parameters_are_of_the_rule(self):
        names = [n for n in type(self).model_fields if getattr(self, n) is not None]
        _check_parameters(self.kind, names)
        for name, annotation in PARAMETERS[self.kind].items():
            try:
                TypeAdapter(annotation).validate_python(getattr(self, name))
            except ValidationError as error:
                rule = error.errors()[0]["msg"].partition(" should ")[2]
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, of {self.kind} must {rule}"
                ) from None
        return self


def _check_parameters(kind: str, names: Iterable[str]) -> None:
    keys = EmbeddingOptimizerConfig.keys_of(kind)
    for name in names:
        if name not in keys:
            takes = ", ".join(PARAMETERS[kind]) or "none"
            raise ValueError(
                f"{name} is set, but is no parameter of {kind}, which has {takes}; "
                f"leave it out"
            )


def _unset() -> type[Config]:
    """Makes a section with the same keys, all of them not set."""
    fields: dict[str, Any] = {
        name: (
            field.rebuild_annotation() | None,
            Field(None, description=field.description),
        )
        for name, field in EmbeddingOptimizerConfig.model_fields.items()
    }
    return create_model("_Unset", __base__=Config, **fields)


class TableOptimizerConfig(_unset()):
    """The optimizer of one table's rows; None takes that of `embedding.optimizer`."""

    schedule: ScheduleConfig | None = None
    """Change of the rate from step to step."""

    def over(self, shared: EmbeddingOptimizerConfig) -> EmbeddingOptimizerConfig:
        """Returns ``shared`` with what is set here; of another rule, with that rule's
        own parameters.

        Raises:
          ValueError: if the rule does not have one that is set here.
        """
        own = self.model_dump(exclude_none=True)
        kind = own.get("kind", shared.kind)
        _check_parameters(kind, own)
        same = kind == shared.kind
        keys = shared.keys_of(kind) if same else _AnyRuleConfig.model_fields
        return EmbeddingOptimizerConfig.model_validate(
            {k: v for k, v in shared.model_dump().items() if k in keys} | own
        )


def _dense_kind(kind: str) -> str:
    if kind in DENSE_OPTIMIZERS or re.fullmatch(r"optax\.\w+|[\w.]+:\w+", kind):
        return kind
    raise ValueError(
        f"{kind!r} given, must be {', '.join(DENSE_OPTIMIZERS)}, an optimizer of optax "
        "such as optax.adamw, or one of your own, my_package.my_module:name"
    )


_DENSE_DEFAULTS: dict[str, dict[str, Any]] = {
    **DENSE_OPTIMIZERS,
    OWN_KIND: {"options": {}},
}


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: Annotated[str, AfterValidator(_dense_kind)] = "adagrad"
    """``sgd``, ``adagrad`` or ``adam``; or a function to call as
    ``name(learning_rate=…, **options)``: ``optax.name`` for one of optax, otherwise
    ``MODULE:NAME``."""
    options: Mapping[str, Any] | None = None
    """Further arguments of a named optimizer, such as `{weight_decay: 0.01}`."""
    learning_rate: PositiveFloat = 0.01
    """Rate of the dense parameters, before the schedule."""
    eps: PositiveFloat | None = None
    """Number added to the square root that ``adagrad`` and ``adam`` divide by; 1e-8
    unless it is set."""
    weight_decay: NonNegativeFloat | None = None
    """Share of itself, times the learning rate, that a parameter of a built-in
    optimizer first loses; 0 unless it is set."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of all gradients of dense parameters together; larger ones are
    scaled down to it. Gradients of embeddings are not. None leaves all as they are."""

    @property
    def named(self) -> str | None:
        """Returns ``MODULE:NAME`` of the function to call; None for built-in
        optimizers."""
        return (
            None
            if self.kind in DENSE_OPTIMIZERS
            else self.kind.replace("optax.", "optax:")
        )

    @classmethod
    def keys_of(cls, kind: Any):
        own = {name for defaults in _DENSE_DEFAULTS.values() for name in defaults}
        kind = str(kind or kind_of(cls))
        named = _DENSE_DEFAULTS.get(kind, _DENSE_DEFAULTS[OWN_KIND])
        return cls.model_fields.keys() - own | named.keys()

    @model_validator(mode="before")
    @classmethod
    def _has_the_parameters_of_its_kind(cls, given: Any):
        if not isinstance(given, Mapping):
            return given
        kind = str(given.get("kind", kind_of(cls)))
        if kind not in _DENSE_DEFAULTS:
            kind = OWN_KIND
        return _with_own_parameters(given, kind, _DENSE_DEFAULTS)

    @model_validator(mode="after")
    def _options_agree(self):
        if self.named:
            if self.eps is not None or self.weight_decay is not None:
                raise ValueError(
                    f"eps and weight_decay are not passed to {self.kind}: set those "
                    "that it takes in options"
                )
        elif self.options is not None:
            raise ValueError(f"options are for others than {self.kind}: leave them out")
        elif self.eps is not None and "eps" not in _DENSE_DEFAULTS[self.kind]:
            raise ValueError(f"eps is no parameter of {self.kind}: leave it out")
        return self
