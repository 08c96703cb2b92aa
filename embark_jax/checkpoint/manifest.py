"""The content of ``checkpoint.json``: which bytes of which files are which arrays.

It is complete in itself: a reader needs neither plan nor mesh.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from embark_jax.checkpoint.errors import CheckpointError, ForeignCheckpointError
from embark_jax.embedding.logical import RangeLayout, TableLayout

FORMAT = "embark_jax checkpoint"
VERSION = 3
NAME = "checkpoint.json"


class Block(NamedTuple):
    """A rectangular part of an array, row by row in a file.

    Attributes:
      file: name of the file.
      offset: position of the block's first byte in the file.
      begin: index of its first element in the array.
      shape: shape of the block.
    """

    file: str
    offset: int
    begin: tuple[int, ...]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SavedArray:
    """One array of the state.

    Attributes:
      dtype: NumPy's name of its type, such as "float32".
      shape: shape of the whole array.
      blocks: its parts, in the order of ``begin``; together they are the whole array.
      key: name of the implementation, for random keys; the array is their data.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    key: str | None = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
      step: step of the state.
      identity: description that a run must agree with to load it.
      bad_ids: for each feature the ids dropped or hashed so far.
      evaluations: records of the evaluations so far.
      files: bytes of each file.
      arrays: arrays by dotted path in the state, such as "storages.rb_64".
      tables: layout of each table's rows in the arrays of storages, by name.
    """

    step: int
    identity: Mapping[str, Any]
    bad_ids: Mapping[str, int]
    evaluations: Sequence[Mapping[str, Any]]
    files: Mapping[str, int]
    arrays: Mapping[str, SavedArray]
    tables: Mapping[str, TableLayout]

    @property
    def table_rows(self) -> dict[str, int]:
        """Number of rows of each table, by name."""
        return {name: layout[-1].end for name, layout in self.tables.items()}

    def to_json(self) -> str:
        """Writes the manifest as JSON; ``from_json`` is the inverse."""
        value = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        for array in value["arrays"].values():
            array["blocks"] = [block._asdict() for block in array["blocks"]]
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads what ``to_json`` wrote.

        Raises:
          ForeignCheckpointError: if the manifest's version is unknown here.
          CheckpointError: if the text is no manifest.
        """
        try:
            value = json.loads(text)
            found = value.pop("format"), value.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f"{NAME} is no description") from None
        if found != (FORMAT, VERSION):
            raise ForeignCheckpointError(
                f"{NAME} is of {found[0]!r}, version {found[1]}; this program reads "
                f"{FORMAT!r}, version {VERSION}"
            )
        try:
            arrays = {name: _array(each) for name, each in value["arrays"].items()}
            tables = {name: _ranges(each) for name, each in value["tables"].items()}
            return cls(**value | {"arrays": arrays, "tables": tables})
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{NAME} lacks something: {error!r}") from None


def _array(value: dict[str, Any]) -> SavedArray:
    blocks = tuple(Block(**_tuples(block)) for block in value["blocks"])
    return SavedArray(**_tuples(value) | {"blocks": blocks})


def _ranges(value: Any) -> TableLayout:
    return tuple(RangeLayout(**_tuples(each)) for each in value)


def _tuples(value: Any) -> Any:
    """Turns JSON's lists into tuples; of a dict, only in its values."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
