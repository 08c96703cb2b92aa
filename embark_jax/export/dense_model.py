"""The dense part of a model as functions of the arrays that scoring reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Var, jaxpr_as_fun

from embark_jax import models
from embark_jax.checkpoint.arrays import array_name
from embark_jax.config import ModelConfig
from embark_jax.export.exported import CALL, TOWERS
from embark_jax.models.interface import Masked
from embark_jax.models.retrieval import RetrievalModel
from embark_jax.plans.tables import FeatureSpec, TableSpec, embedding_shapes
from embark_jax.train.step_model import step_model

EXACT = {"compute_dtype": "float32", "float8": False}
"""Options of models that round, and their values that do not."""


class DenseModel:
    """Functions of arrays by dotted path: ``model(arrays, dense, embeddings, valid)``.

    Args:
      config: the model's config.
      tables, features: the model's tables and features.
      dense_features: number of columns of its dense input.

    Attributes:
      arrays: shapes of the parameters and other variables that scoring reads.
      methods: the call, and towers if the model has them.
      item, ranks_items: as in ``ExportedModel``; an ``item`` of a model of the user's
        own is its attribute of that name.
      embedding_shapes: each feature's embedding shape per sample.
      lengths: number of places of each sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        dense_features: int,
    ):
        self._config = config
        self._inputs = tuple(tables), tuple(features), dense_features
        self.dense_features = dense_features
        self.embedding_shapes = embedding_shapes(tables, features)
        self.lengths = {f.name: f.hotness for f in features if f.pooling == "none"}
        model = nnx.eval_shape(
            lambda: models.build(
                config, self.embedding_shapes, dense_features, nnx.Rngs(0)
            )
        )
        has_towers = all(callable(getattr(model, tower, None)) for tower in TOWERS)
        self.methods = (CALL, *TOWERS) if has_towers else (CALL,)
        item = getattr(model, "item", None) if has_towers else None
        is_alone = getattr(model, "item_features", (item,)) == (item,)
        is_feature = isinstance(item, str) and item in self.embedding_shapes
        self.item = item if is_feature and is_alone else None
        self.ranks_items = isinstance(model, RetrievalModel)
        self._model = step_model(model)
        variables = self._model.params, self._model.state
        leaves, self._structure = jax.tree.flatten_with_path(variables)
        # Names as in a checkpoint, but for the first word: whose variables they are.
        self._variables = {array_name(path[1:]): leaf for path, leaf in leaves}
        read = set().union(*map(self._names_read, self.methods))
        self.arrays = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for name, leaf in sorted(self._variables.items())
            if name in read
        }
        # Before jax2onnx puts primitives without rules for batches into layers.
        self._of_sample = (
            {method: self._sample(method) for method in self.methods}
            if self._model.packed
            else {}
        )

    def __call__(
        self,
        arrays: Mapping[str, jax.Array],
        dense: jax.Array,
        embeddings: Mapping[str, jax.Array],
        valid: Mapping[str, jax.Array],
        method: str = CALL,
        *,
        in_turn: bool = False,
    ) -> jax.Array:
        """Returns logits, or a tower's vectors; see ``models.interface`` for shapes.
        ``valid`` says of each sequence, ``[batch, hotness]``, where it has an event.

        Packed, samples share arrays of events, of which a batch of unknown size has no
        number: there each sample is scored alone, with ``in_turn`` one after another.
        """
        if not self._model.packed or isinstance(dense.shape[0], int):
            return self._score(arrays, dense, embeddings, valid, method)
        score = jaxpr_as_fun(self._of_sample[method])
        params = jax.tree.leaves({name: arrays[name] for name in self.arrays})
        inputs = jax.tree.leaves((dense, dict(embeddings), dict(valid)))

        def of_sample(sample):
            return score(*params, *sample)[0]

        return (
            jax.lax.map(of_sample, inputs) if in_turn else jax.vmap(of_sample)(inputs)
        )

    def _score(self, arrays, dense, embeddings, valid, method: str) -> jax.Array:
        # Of those that scoring does not read there are shapes alone.
        leaves = [arrays.get(name, leaf) for name, leaf in self._variables.items()]
        params, state = self._structure.unflatten(leaves)
        inputs: dict[str, Any] = dict(embeddings)
        if self._model.masked or self._model.packed:
            inputs |= {n: Masked(inputs[n], places) for n, places in valid.items()}
        return self._model.score(params, state, dense, inputs, method)

    def _sample(self, method: str) -> Any:
        """Traces the score of one sample."""

        def score(arrays, *sample):
            dense, embeddings, valid = jax.tree.map(lambda x: x[None], sample)
            return self._score(arrays, dense, embeddings, valid, method)[0]

        of_one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.shapes(1)
        )
        return jax.make_jaxpr(score)(self.arrays, *of_one)

    def in_float32(self) -> DenseModel:
        """Returns the same functions, computed in float32."""
        options = self._config.model_dump()
        rounding = {n: exact for n, exact in EXACT.items() if n in options}
        if rounding.items() <= options.items():
            return self
        config = self._config.model_copy(update=rounding)
        return DenseModel(config, *self._inputs)

    def shapes(
        self, batch: Any
    ) -> tuple[jax.ShapeDtypeStruct, dict[str, Any], dict[str, Any]]:
        """Returns the shapes of the dense input, the embeddings and the places of
        events of a batch, whose size may be symbolic."""

        def shape(*dims, dtype=jnp.float32):
            return jax.ShapeDtypeStruct((batch, *dims), dtype)

        return (
            shape(self.dense_features),
            {name: shape(*dims) for name, dims in self.embedding_shapes.items()},
            {name: shape(length, dtype=bool) for name, length in self.lengths.items()},
        )

    def _names_read(self, method: str) -> set[str]:
        """Returns the names of the variables that a method reads: others are of
        training, such as the keys of dropout."""
        call = functools.partial(self._score, method=method)
        jaxpr = jax.make_jaxpr(call)(self._variables, *self.shapes(2)).jaxpr
        read = {
            variable
            for values in (*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars)
            for variable in values
            if isinstance(variable, Var)
        }
        # A mapping is flattened in the order of its keys.
        names = sorted(self._variables)
        return {n for n, v in zip(names, jaxpr.invars, strict=False) if v in read}
