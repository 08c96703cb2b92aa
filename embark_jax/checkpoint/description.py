"""The description beside the arrays of a checkpoint, in JSON.

It is complete in itself: a reader needs neither plan nor mesh.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from embark_jax.checkpoint.errors import CheckpointError
from embark_jax.embedding.logical import RangeLayout

ARRAYS, DESCRIPTION = "arrays", "embark"
"""Names of the items that Orbax saves: folders of a checkpoint."""
NAME = "checkpoint.json"
CHECKSUM = "crc32"


class Description(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """The description of a checkpoint.

    Attributes:
      step: step of the state.
      identity: description that a run must agree with to load it.
      bad_ids: for each feature the ids dropped or hashed so far.
      evaluations: records of the evaluations so far.
      plan: plan of the run, as JSON-like data.
      arrays: dtype and shape of each array, as it is saved, by dotted path in the
        state, such as "storages.rb_64".
      keys: implementation of those that are the data of random keys, by name.
      tables: layout of each table's rows in the arrays of storages, by name.
    """

    step: int
    identity: Mapping[str, Any]
    bad_ids: Mapping[str, int]
    evaluations: Sequence[Mapping[str, Any]]
    plan: Mapping[str, Any]
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    keys: dict[str, str]
    tables: dict[str, tuple[RangeLayout, ...]]

    @property
    def table_rows(self) -> dict[str, int]:
        """Number of rows of each table, by name."""
        return {name: layout[-1].end for name, layout in self.tables.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-like data with a checksum; ``from_json`` is the inverse."""
        fields = json.loads(self.model_dump_json())
        return {CHECKSUM: _checksum(fields), **fields}

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Reads the JSON of what ``to_json`` returned.

        Raises:
          CheckpointError: if it is damaged.
        """
        try:
            fields = json.loads(text)
            if fields.pop(CHECKSUM) == _checksum(fields):
                return cls.model_validate(fields)
        except (ValueError, KeyError, AttributeError, TypeError):
            pass
        raise CheckpointError(f"{NAME}: the checksum is wrong")


def _checksum(fields: dict[str, Any]) -> int:
    """Returns the CRC-32 of the fields in JSON's shortest form, sorted by name."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return zlib.crc32(text.encode())
