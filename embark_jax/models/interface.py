"""What every model takes and gives, checked in one place.

A model is called as ``model(dense, embeddings)`` with ``dense`` ``[batch,
dense_features]`` float32 and ``embeddings`` ``{feature: [batch, dim]}``, and returns
logits ``[batch]`` float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax


def pooled_dims(
    embedding_shapes: Mapping[str, tuple[int, ...]],
) -> tuple[tuple[str, int], ...]:
    """``(feature, dim)`` pairs, sorted by name.

    Sorted, so that no reordering of a config can hand the weights that a checkpoint
    holds for one feature to another.

    Args:
      embedding_shapes: each feature's output shape a sample: ``(dim,)`` where pooled.

    Raises:
      ValueError: if a feature is not pooled.
    """
    sequences = [
        f"feature {name!r} gives {tuple(shape)} a sample, must be (dim,): this model "
        "takes pooled features, so set pooling to sum or mean"
        for name, shape in sorted(embedding_shapes.items())
        if len(shape) != 1
    ]
    if sequences:
        raise ValueError("; ".join(sequences))
    return tuple((name, embedding_shapes[name][0]) for name in sorted(embedding_shapes))


def check_top(top: Sequence[int]) -> None:
    """Raises ``ValueError`` unless the top MLP ends in the one logit."""
    if tuple(top[-1:]) != (1,):
        raise ValueError(f"top is {tuple(top)}, must end in 1, the logit")


def in_order(
    embeddings: Mapping[str, jax.Array], dims: tuple[tuple[str, int], ...]
) -> list[jax.Array]:
    """The embeddings in the order of ``dims``, whatever the order of the mapping.

    Raises:
      ValueError: if a feature is missing, unknown or not ``[batch, dim]``.
    """
    expected = {name: f"[batch, {dim}]" for name, dim in dims}
    given = {
        name: f"[batch, {array.shape[1]}]" if array.ndim == 2 else f"{array.shape}"
        for name, array in embeddings.items()
    }
    wrong = [
        f"feature {name!r} is {given.get(name, 'missing')}, "
        f"must be {expected.get(name, 'absent: the model was built without it')}"
        for name in sorted(expected.keys() | given.keys())
        if expected.get(name) != given.get(name)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    return [embeddings[name] for name, _ in dims]
