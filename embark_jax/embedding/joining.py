"""Joins a user's arrays of ids, one for each feature, to the matrices of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from embark_jax.data.layout import IDS, LONG_IDS, NUMBERS, Layout
from embark_jax.embedding.batch_ids import DeviceBatch
from embark_jax.embedding.sequences import Spans
from embark_jax.plans.plan import Plan


def join_columns(
    plan: Plan,
    ids: Mapping[str, jax.Array],
    weights: Mapping[str, jax.Array],
    spans: Mapping[str, Spans],
) -> DeviceBatch:
    """Joins arrays by feature to a batch without labels.

    Args:
      plan: plan with the features.
      ids, weights, spans: as ``EmbeddingCollection.route`` takes them.

    Raises:
      ValueError: if a feature is missing or has another shape or type.
    """
    shapes = _shapes_of_ids(plan)
    _check_arrays("ids", ids, shapes, (jnp.int32, jnp.int64))
    weighted = {f.name: shapes[f.name] for f in plan.features if f.weighted}
    _check_arrays("weights", weights, weighted, (jnp.float32,))

    def join(names, rows, sequences):
        layout = Layout(
            labels=0,
            ids=tuple(
                (n, ids[n].size // rows, ids[n].dtype == jnp.int64) for n in names
            ),
            weights=tuple((n, weights[n].size // rows) for n in names if n in weights),
            spans=sequences,
        )
        parts: dict[str, list[jax.Array]] = {}
        for name, (matrix, _) in layout.id_columns.items():
            with jax.enable_x64(matrix == LONG_IDS):
                columns = ids[name].reshape(rows, -1)
                if matrix == LONG_IDS:
                    columns = lax.bitcast_convert_type(columns, jnp.int32)
                parts.setdefault(matrix, []).append(columns.reshape(rows, -1))
        for name, _ in layout.weights:
            parts.setdefault(NUMBERS, []).append(weights[name].reshape(rows, -1))
        for name in sequences:
            parts.setdefault(IDS, []).append(jnp.stack(spans[name][:2], axis=1))
        joined = {n: jnp.concatenate(each, axis=1) for n, each in parts.items()}
        return layout, joined

    sequences = [f.name for f in plan.features if f.sequence]
    pooled = [f.name for f in plan.features if not f.sequence]
    layout, samples = join(pooled, plan.batch_size, tuple(spans))
    of_events, events = join(sequences, plan.devices, ())
    return DeviceBatch(samples, layout, False, events, of_events)


def _shapes_of_ids(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each feature's ids."""
    return {
        f.name: (plan.devices * plan.events[f.name],)
        if f.sequence
        else (plan.batch_size, f.hotness)
        for f in plan.features
    }


def check_layout(plan: Plan, batch: DeviceBatch) -> None:
    """Raises ``ValueError`` if the columns of a batch are not those of the plan."""
    found = {name: width for name, width, _ in batch.layout.ids}
    found |= {name: width for name, width, _ in batch.layout_of_events.ids}
    room = plan.events
    expected = {f.name: room.get(f.name, f.hotness) for f in plan.features}
    if found != expected:
        wrong = sorted(found.items() ^ expected.items())
        raise ValueError(f"the batch has other columns of ids than the plan: {wrong}")


def _check_arrays(
    what: str,
    arrays: Mapping[str, jax.Array],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Sequence[DTypeLike],
) -> None:
    """Raises ``ValueError`` if ids or weights are not those of a plan's batch.

    Args:
      what: name of the arrays in the message.
      arrays: arrays by feature.
      shapes: shapes of the features that must have them.
      dtypes: allowed dtypes.
    """
    if set(arrays) != set(shapes):
        raise ValueError(
            f"{what} are given for {sorted(arrays)}, must be for {sorted(shapes)}"
        )
    allowed = " or ".join(str(jnp.dtype(dtype)) for dtype in dtypes)
    problems = [
        f"{what} of feature {name!r} are {array.dtype} of shape {array.shape}, "
        f"must be {allowed} of shape {shapes[name]} ([batch, hotness] of the plan, or "
        "[events] of a sequence)"
        for name, array in arrays.items()
        if array.shape != shapes[name] or array.dtype not in dtypes
    ]
    if problems:
        raise ValueError("; ".join(problems))
