"""A user's own dataset, which the config names."""

from __future__ import annotations

from embark_jax._base.config import ConfigError
from embark_jax.config import EmbeddingConfig, OwnDataConfig, call_named
from embark_jax.data.dataset import Dataset
from embark_jax.data.source import Description


class OwnSource:
    """See ``Source``; nothing is known but what a ``Dataset`` says."""

    def __init__(self, section: OwnDataConfig, embedding: EmbeddingConfig):
        self._section = section

    def open(self, seed: int) -> tuple[Dataset, Description]:
        kind = self._section.kind
        dataset = call_named(kind, **self._section.options, seed=seed)
        members = [name for name in vars(Dataset) if not name.startswith("_")]
        if missing := [name for name in members if not hasattr(dataset, name)]:
            raise ConfigError(
                f"{kind}: has no {', '.join(missing)}; data.Dataset says what a "
                "dataset must have"
            )
        order = self._section.model_dump(mode="json", exclude={"path"})
        return dataset, Description.of(dataset, labels=None, order=order)

    def absent(self) -> None:
        return None
