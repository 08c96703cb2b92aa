"""Optimizers of rows and of dense parameters, and their schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from embark_kernels.optimizers import ROW_OPTIMIZERS, parameters
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    create_model,
)
from typing_extensions import Doc

from embark_jax._base.config import DESCRIBED, Config
from embark_jax._base.validation import problems_of
from embark_jax.config.own import NAMED, OWN_KIND, OwnConfig, one_of
from embark_jax.plans.options import DENSE_OPTIMIZERS


class _ScheduleConfig(Config):
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""


class ConstantScheduleConfig(_ScheduleConfig):
    """The whole rate, after a warm-up in which it rises linearly from 0."""

    kind: Literal["constant"] = "constant"


class CosineScheduleConfig(_ScheduleConfig):
    """Half a cosine, after the warm-up, down to 0 at the end of the run
    (https://arxiv.org/abs/1608.03983, without restarts)."""

    kind: Literal["cosine"] = "cosine"


class PolynomialScheduleConfig(_ScheduleConfig):
    """The whole rate for ``hold_steps`` after the warm-up, then ``(1 - t) ** power``
    down to 0 at the end of the run; MLPerf's DLRM has power 2."""

    kind: Literal["polynomial"] = "polynomial"
    hold_steps: NonNegativeInt = 0
    """Steps of the whole rate between warm-up and decay."""
    power: PositiveFloat = 1.0
    """Exponent of the decay; 1 is linear."""


class StepScheduleConfig(_ScheduleConfig):
    """A rate that is multiplied by ``factor`` at each of these steps, after a
    warm-up."""

    kind: Literal["steps"] = "steps"
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


class EmbeddingOptimizerConfig(Config):
    """The optimizer of embedding rows, applied once to each touched row. Its further
    keys are the parameters of the rule that ``kind`` names."""

    kind: str
    """The rule."""
    learning_rate: PositiveFloat = 0.01
    """Rate of the rows of all tables, before the schedule."""
    weight_decay: NonNegativeFloat = 0.0
    """A touched row first loses ``weight_decay`` times the learning rate of itself;
    rows that no id of a batch touches stay as they are."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""

    def with_changes(self, changes: Mapping[str, Any]) -> EmbeddingOptimizerConfig:
        """Returns it with some keys changed; of another rule, with that rule's own
        parameters.

        Raises:
          ValueError: if they make no optimizer.
        """
        same = changes.get("kind", self.kind) == self.kind
        shared = type(self) if same else EmbeddingOptimizerConfig
        data = {"kind": self.kind, **self.model_dump(include={*shared.model_fields})}
        try:
            return TypeAdapter(RowOptimizerConfig).validate_python(data | {**changes})
        except ValidationError as error:
            problems = problems_of(error, data | {**changes}, RowOptimizerConfig)
            texts = (f"{key}: {text}".lstrip(": ") for key, text in problems.items())
            raise ValueError("; ".join(texts)) from None


class DenseOptimizerConfig(Config):
    """The optax optimizer of the dense parameters."""

    kind: str
    """``sgd``, ``adagrad`` or ``adam``; or a function to call as
    ``name(learning_rate=…, **keys)`` with all further keys: ``optax.name`` for one of
    optax, otherwise ``MODULE:NAME``."""
    learning_rate: PositiveFloat = 0.01
    """Rate of the dense parameters, before the schedule."""
    schedule: ScheduleConfig = ConstantScheduleConfig()
    """Change of the rate from step to step."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of all gradients of dense parameters together; larger ones are
    scaled down to it. Gradients of embeddings are not. None leaves all as they are."""


class NamedOptimizerConfig(OwnConfig, DenseOptimizerConfig):
    """An optimizer of optax, or your own, which is called as
    ``name(learning_rate=…, **keys)``."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=rf"^(optax\.\w+|{NAMED})$")] = OWN_KIND
    """Name of optax, such as optax.adamw, or MODULE:NAME of your own."""


EPS = Annotated[
    PositiveFloat, Doc("Number added to the square root that the rule divides by.")
]
DECAY = Annotated[
    NonNegativeFloat,
    Doc("Share of itself, times the learning rate, that a parameter first loses."),
]


def _section(
    base: type[Config], kind: str, about: Any, types: Mapping[str, Any], defaults: Any
):
    """Returns the section of a kind, with the keys of ``base`` and these."""
    fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
    for name, annotation in types.items():
        *rules, doc = annotation.__metadata__
        annotation = Annotated[(annotation.__origin__, *rules)]
        fields[name] = annotation, Field(defaults[name], description=doc.documentation)
    name = f"{kind}_{base.__name__}"
    return create_model(
        name, __base__=base, __doc__=about, __cls_kwargs__=DESCRIBED, **fields
    )


def _defaults(rule: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(rule)}


ROW_RULES: dict[str, Any] = {
    kind: _section(
        EmbeddingOptimizerConfig, kind, rule.__doc__, parameters(rule), _defaults(rule)
    )
    for kind, rule in ROW_OPTIMIZERS.items()
}
"""The section of each rule, whose parameters are those of its class."""
DENSE_RULES: dict[str, Any] = {
    kind: _section(
        DenseOptimizerConfig,
        kind,
        DenseOptimizerConfig.__doc__,
        {name: {"eps": EPS, "weight_decay": DECAY}[name] for name in defaults},
        defaults,
    )
    for kind, defaults in DENSE_OPTIMIZERS.items()
}
"""The section of each optimizer of dense parameters that has a name of its own."""
if TYPE_CHECKING:
    RowOptimizerConfig = EmbeddingOptimizerConfig
    AnyDenseOptimizerConfig = DenseOptimizerConfig
else:
    RowOptimizerConfig = one_of(ROW_RULES.values(), "rowwise_adagrad")
    AnyDenseOptimizerConfig = one_of(
        [*DENSE_RULES.values(), NamedOptimizerConfig], "adagrad"
    )
