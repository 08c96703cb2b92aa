"""What ``checkpoint.json`` says of the arrays beside it.

It is complete in itself: a reader needs neither plan nor mesh.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from embark_jax.checkpoint.errors import CheckpointError, OtherExperimentError
from embark_jax.data.hashed_file import checksum_of
from embark_jax.embedding.logical import rows_and_dim
from embark_jax.plans.layout import SHARD, SHARD_FIELDS

ARRAYS = "arrays"
"""Folder of a checkpoint with its arrays."""
NAME = "checkpoint.json"
FILE = f"embark/{NAME}"
"""File of a checkpoint with its contents."""
ORBAX_FILE = f"{ARRAYS}/_METADATA"
"""File by which Orbax knows the arrays:
https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html."""
VERSION = 5


class CheckpointContents(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """The contents of a checkpoint.

    Attributes:
      step: step of the state.
      identity: what a run must agree with to load it.
      bad_ids: for each feature the ids dropped or hashed so far.
      evaluations: records of the evaluations so far.
      plan: plan of the run, as JSON-like data.
      arrays: dtype and shape of each array, as it is saved, by dotted path in the
        state, such as "storages.rb_64".
      keys: implementation of those that are the data of random keys, by name.
      storages: names of the plan's storages, by their numbers.
      processes: number of processes that wrote it.
      tables: for each table, by name, the fields of its shards' records, as
        ``embedding.logical.table_shards`` returns them.
    """

    step: int
    identity: Mapping[str, Any]
    bad_ids: Mapping[str, int]
    evaluations: Sequence[Mapping[str, Any]]
    plan: Mapping[str, Any]
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    keys: dict[str, str]
    storages: list[str]
    processes: int
    tables: dict[str, dict[str, list[int]]]

    @functools.cached_property
    def shards(self) -> dict[str, np.ndarray]:
        """Returns ``tables`` as records."""
        return {
            name: np.rec.fromarrays([fields[field] for field in SHARD_FIELDS], SHARD)
            for name, fields in self.tables.items()
        }

    @property
    def table_rows(self) -> dict[str, int]:
        """Number of rows of each table, by name."""
        return {name: rows_and_dim(of)[0] for name, of in self.shards.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-like data with a checksum; ``from_json`` is the inverse."""
        fields = {"version": VERSION, **json.loads(self.model_dump_json())}
        return {"checksum": checksum_of(fields), **fields}

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointContents:
        """Reads the JSON of what ``to_json`` returned.

        Raises:
          CheckpointError: if it is damaged.
          OtherExperimentError: if it is of another version.
        """
        try:
            fields = json.loads(text)
            intact = fields.pop("checksum", None) == checksum_of(fields)
        except (ValueError, AttributeError, TypeError):
            intact, fields = False, {}
        if not intact:
            raise CheckpointError(f"{NAME} is not as it was written")
        if fields["version"] != VERSION:
            raise OtherExperimentError(
                f"{NAME} is of another version of embark_jax: train anew, or use that "
                "version"
            )
        return cls.model_validate(fields)


def orbax_metadata(names: Iterable[str]) -> str:
    """Returns the content of ``ORBAX_FILE`` for arrays of these names."""
    tree = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": 2}],  # of a mapping
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        for name in names
    }
    return json.dumps({"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": True})
