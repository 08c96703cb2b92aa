"""A small config of each model of the registry, and data that it takes."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import embark_jax as ej
from embark_jax.config.models import MODELS, ModelConfig, section_of
from embark_jax.models import Joined, JoinedModel, Masked

DIM, LENGTH = 8, 3
TABLES = (ej.TableSpec("user", 30, DIM), ej.TableSpec("item", 50, DIM))
VARIANTS = (
    ("autoint", {"deep": (DIM,)}),
    ("mmoe", {"experts": 1}),
    ("next_item", {"encoder": "sasrec", "heads": 2}),
    (
        "dlrm_v4",
        {
            "history": dict.fromkeys(("past", "actions", "others"), "item"),
            "content": "past",
            "encodings": ("actions",),
            **dict.fromkeys(("width", "hidden", "deep"), DIM),
            **dict.fromkeys(("heads", "head_dim", "layers"), 2),
        },
    ),
)
"""Options that add layers to a model, or take some away."""
KINDS = {kind: section_of(kind) for kind in MODELS}

CASES = [*((kind, {}) for kind in KINDS), *VARIANTS]


def small_config(section: type[ModelConfig], **changes: Any) -> ModelConfig:
    """Makes a config with the first examples of required keys, and all widths DIM but
    for those of logits."""
    values = {}
    for name, field in section.model_fields.items():
        if field.is_required():
            assert field.examples, f"{section.__name__}.{name} needs an example"
            values[name] = field.examples[0]
        elif isinstance(field.default, tuple):
            values[name] = tuple(
                DIM if isinstance(width, int) and width > 1 else width
                for width in field.default
            )
    return section(**(values | changes))


def features_of(config: ModelConfig) -> tuple[ej.FeatureSpec, ...]:
    """Returns features of the small tables, with the sequences that the model reads."""
    histories = getattr(config, "history", {})
    return (
        ej.FeatureSpec("user"),
        ej.FeatureSpec("item", hotness=2, pooling="mean"),
        *(
            ej.FeatureSpec(name, table, hotness=LENGTH, pooling="none")
            for name, table in histories.items()
        ),
    )


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns each feature's embedding shape per sample."""
    return {
        feature.name: (LENGTH, DIM) if feature.pooling == "none" else (DIM,)
        for feature in features_of(config)
    }


def joined(model: Any, embeddings: dict[str, Any]) -> Any:
    """Returns embeddings in one array, if the model takes one and it can be made."""
    names = sorted(embeddings)
    if not isinstance(model, JoinedModel):
        return embeddings
    if any(embeddings[name].ndim == 3 for name in names):
        return embeddings
    dims = tuple((name, embeddings[name].shape[1]) for name in names)
    values = jnp.concatenate([embeddings[name] for name in names], axis=1)
    alone = len({dim for _, dim in dims}) == 1 and model.beside % dims[0][1] == 0
    room = model.beside if alone else 0
    # What the model does not replace would show.
    values = jnp.pad(values, ((0, 0), (room, 0)), constant_values=1e6)
    return Joined(values, dims, room)


def masked(embeddings: dict[str, Any]) -> dict[str, Any]:
    """Returns embeddings whose sequences have events here and there: sample i has those
    of the bits of i."""
    taken = dict(embeddings)
    for name, rows in embeddings.items():
        if rows.ndim == 3:
            samples, places = np.arange(len(rows)), np.arange(rows.shape[1])
            valid = samples[:, None] >> places[None] & 1 == 1
            taken[name] = Masked(rows, valid)
    return taken
