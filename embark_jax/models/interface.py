"""The inputs and outputs of every model, checked in one place.

A model is made by ``Model(embedding_shapes, dense_features, **options, rngs=rngs)``:
each feature's embedding shape per sample, ``(dim,)``, or ``(length, dim)`` of a
sequence; the number of dense features, which may be 0; its hyperparameters; and the
random streams ``params`` and ``dropout``. Features are taken sorted by name. It raises
``ValueError`` if these do not suit it.

It is called as ``model(dense, embeddings)`` with ``dense`` ``[batch, dense_features]``
float32 and ``embeddings`` ``{feature: [batch, *shape]}`` in any order; models that read
histories also take ``models.Masked`` ones, and some ``models.Packed`` ones; all places
of others are events. A ``models.JoinedModel`` also takes ``models.Joined`` ones: those
of all features in one array. It returns logits ``[batch]`` float32, or ``[batch,
tasks]`` if a sample has several labels, and raises ``ValueError`` if a feature is
missing, unknown or of another shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from embark_kernels.packing import unpack
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from embark_jax.plans.tables import PADDING_ID

Shapes = Mapping[str, tuple[int, ...]]
"""Each feature's embedding shape per sample."""
Embeddings = Mapping[str, jax.Array]
"""Each feature's embeddings, ``[batch, *shape]``."""


class Masked(NamedTuple):
    """The embeddings of a padded sequence, and which of its places hold an event.

    Attributes:
      values: ``[batch, longest, dim]``.
      valid: ``[batch, longest]`` bool.
    """

    values: jax.Array
    valid: jax.Array


class MaskedModel(nnx.Module):
    """A Flax module whose embeddings of sequences are ``Masked``; of an array, which
    has no mask, all places hold an event."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joined:
    """The embeddings of all features in one array.

    Attributes:
      values: ``[batch, room + sum of dims]``.
      dims: ``(feature, dim)`` pairs, sorted by name.
      room: width of the values that the model puts before them.
    """

    values: jax.Array
    dims: tuple[tuple[str, int], ...] = dataclasses.field(metadata={"static": True})
    room: int = dataclasses.field(default=0, metadata={"static": True})


class JoinedModel(nnx.Module):
    """A Flax module whose embeddings are looked up in its ``compute_dtype``, in which
    their gradients return. They are ``Joined`` if all features are pooled; it takes
    them by feature, too: see ``layers.side_by_side``.

    Attributes:
      compute_dtype: that dtype.
      beside: width of the values that it puts before them.
    """

    compute_dtype: jnp.dtype
    beside: int = 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """The embeddings of a packed sequence: on each device the events of its samples,
    one after the other, and room for others.

    Attributes:
      values: ``[total, dim]``.
      ids: ``[total]`` int32 or int64; -1 where there is no event.
      begin: ``[batch]`` int32 place that the first event of each sample would have in a
        padded sequence.
      length: ``[batch]`` int32 places from there to the last event.
      first: ``[batch]`` int32 index of the first event among those of its device.
      longest: number of places of a padded sequence.
      mesh: mesh of the devices, if they are several.
      implementation: kernels of the layers that read it: "xla", "mosaic_gpu" where
        those can, or None; see ``embark_kernels.attention``.
    """

    values: jax.Array
    ids: jax.Array
    begin: jax.Array
    length: jax.Array
    first: jax.Array
    longest: int = dataclasses.field(metadata={"static": True})
    mesh: Mesh | None = dataclasses.field(default=None, metadata={"static": True})
    implementation: str | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    def padded(self) -> Masked:
        """Returns the sequence with padding."""

        def pad(values, ids, begin, length, first):
            spans = begin, length, first
            values, ids = (unpack(x, self.longest, *spans) for x in (values, ids))
            with jax.enable_x64(ids.dtype.itemsize == 8):
                return values, ids != PADDING_ID

        arrays = self.values, self.ids, self.begin, self.length, self.first
        return Masked(*on_devices(self.mesh, pad)(*arrays))


class PackedModel(nnx.Module):
    """A Flax module whose embeddings of sequences are ``Packed``; it takes ``Masked``
    ones and arrays as ``MaskedModel`` does."""


Embedding = jax.Array | Masked | Packed
"""The embeddings of a sequence."""


def on_devices(mesh: Mesh | None, function: Callable, everywhere: int = 0) -> Callable:
    """Turns a function of one device's samples and events into one of whole arrays;
    without a mesh it is that already. The last arguments, so many, are the same on all
    devices."""
    if mesh is None:
        return function
    by_device = PartitionSpec(mesh.axis_names)

    def mapped(*arrays):
        specs = [by_device] * (len(arrays) - everywhere)
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(*specs, *[PartitionSpec()] * everywhere),
            out_specs=by_device,
            check_vma=False,
        )(*arrays)

    return mapped


def unmasked(
    embeddings: Mapping[str, Any] | Joined,
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Returns the embeddings as float32 arrays, and of each sequence which places hold
    an event."""
    if isinstance(embeddings, Joined):
        names, dims = zip(*embeddings.dims, strict=True)
        columns = lax.split(embeddings.values[:, embeddings.room :], dims, axis=1)
        embeddings = dict(zip(names, columns, strict=True))
    arrays, valid = dict(embeddings), {}
    for name, embedding in embeddings.items():
        if isinstance(embedding, Packed):
            embedding = embedding.padded()
        if isinstance(embedding, Masked):
            arrays[name], valid[name] = embedding
        elif embedding.ndim == 3:
            valid[name] = jnp.ones(embedding.shape[:2], dtype=bool)
    return {n: array.astype(jnp.float32) for n, array in arrays.items()}, valid


def pooled_dims(embedding_shapes: Shapes) -> tuple[tuple[str, int], ...]:
    """Returns ``(feature, dim)`` pairs, sorted by name: reordering a config must not
    give the weights that a checkpoint holds for one feature to another.

    Raises:
      ValueError: if a feature is not pooled.
    """
    sequences = [
        f"feature {name!r} gives {tuple(shape)} a sample, must be (dim,): this model "
        f"takes pooled features, so set embedding.features.{name}.pooling (pooling of "
        "FeatureSpec) to sum or mean"
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


def check_deep(width: int) -> None:
    """Raises ``ValueError`` if the deep part of a model would read nothing, since the
    first column of each table belongs to its linear part."""
    if not width:
        raise ValueError(
            "every feature has dim 1, its weight in the linear part, which leaves "
            "nothing for the deep part; give at least one table dim 2 or more"
        )


def in_order(
    embeddings: Embeddings, dims: tuple[tuple[str, int], ...]
) -> list[jax.Array]:
    """Returns the embeddings in the order of ``dims``, whatever the mapping's order.

    Raises:
      ValueError: if a feature is missing, unknown or not ``[batch, dim]``.
    """
    check_embeddings(embeddings, [(name, (dim,)) for name, dim in dims])
    return [embeddings[name] for name, _ in dims]


def joined(
    embeddings: Embeddings | Joined, dims: tuple[tuple[str, int], ...]
) -> jax.Array:
    """Returns the embeddings of a ``JoinedModel`` side by side, ``[batch, sum of
    dims]``, in the order of ``dims``, which are sorted by name; after the room that
    they have.

    Raises:
      ValueError: as ``in_order`` does.
    """
    if not isinstance(embeddings, Joined):
        return jnp.concatenate(in_order(embeddings, dims), axis=1)
    if embeddings.dims != dims:
        expected = [(name, (dim,)) for name, dim in dims]
        check_embeddings(unmasked(embeddings)[0], expected)
    return embeddings.values


def check_equal_dims(dims: Sequence[tuple[str, int]], dim: int, reason: str) -> None:
    """Raises ``ValueError`` with the reason unless all features have this dim; 0 is
    that of the first."""
    dim = dim or dims[0][1]
    unequal = [
        f"feature {name!r} has dim {other}, must be {dim}, {reason}"
        for name, other in dims
        if other != dim
    ]
    if unequal:
        raise ValueError("; ".join(unequal))


def check_history(embedding_shapes: Shapes, history: Mapping[str, str]) -> None:
    """Checks which sequence holds the past of which feature.

    Args:
      embedding_shapes: each feature's embedding shape per sample.
      history: for each sequence the feature whose past values it holds.

    Raises:
      ValueError: unless each sequence holds the past of a pooled feature, of the same
        dim.
    """
    sequences = {n: shape for n, shape in embedding_shapes.items() if len(shape) == 2}
    problems = [
        f"feature {name!r} is a sequence, must be in history, or be pooled "
        f"(embedding.features.{name}.pooling=mean)"
        for name in sorted(sequences.keys() - history.keys())
    ]
    for name, candidate in history.items():
        if name not in sequences:
            problems.append(
                f"history has {name!r}, must be a feature with pooling none"
            )
        elif embedding_shapes.get(candidate) != sequences[name][1:]:
            problems.append(
                f"history.{name} is {candidate!r}, must be a feature that is pooled, "
                f"of dim {sequences[name][1]}"
            )
    if problems:
        raise ValueError("; ".join(problems))


def history_length(embedding_shapes: Shapes, history: Mapping[str, str]) -> int:
    """Returns the length of the sequences; arguments as in ``check_history``.

    Raises:
      ValueError: also unless there are some, of one length.
    """
    check_history(embedding_shapes, history)
    lengths = {embedding_shapes[name][0] for name in history}
    if len(lengths) != 1:
        raise ValueError(f"sequences have lengths {sorted(lengths)}, must have one")
    return lengths.pop()


def check_embeddings(
    embeddings: Embeddings, shapes: Iterable[tuple[str, tuple[int, ...]]]
) -> None:
    """Raises ``ValueError`` if a feature is missing, unknown or of another shape.

    Args:
      embeddings: each ``[batch, *shape]``.
      shapes: each feature's shape per sample.
    """
    expected = {name: _batch_of(shape) for name, shape in shapes}
    actual = {name: _batch_of(_shape(array)) for name, array in embeddings.items()}
    wrong = [
        f"feature {name!r} is {actual.get(name, 'missing')}, "
        f"must be {expected.get(name, 'absent: the model was built without it')}"
        for name in sorted(expected.keys() | actual.keys())
        if expected.get(name) != actual.get(name)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _shape(embedding: Any) -> tuple[int, ...]:
    """Returns the shape of an embedding of a sample."""
    if isinstance(embedding, Packed):
        return embedding.longest, embedding.values.shape[1]
    return getattr(embedding, "values", embedding).shape[1:]


def _batch_of(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ('batch', *shape)))}]"
