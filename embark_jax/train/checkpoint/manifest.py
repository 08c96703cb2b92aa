"""What ``checkpoint.json`` says: which bytes of which files make up which arrays.

It is complete in itself: whoever reads it needs neither plan nor mesh.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from embark_jax.embedding.logical import RangeLayout, TableLayout
from embark_jax.train.checkpoint.errors import CheckpointError, ForeignCheckpointError

FORMAT = "embark_jax checkpoint"
VERSION = 2
NAME = "checkpoint.json"


class Block(NamedTuple):
    """A rectangular part of an array, row by row in a file.

    Attributes:
      file: its name.
      offset: of the block's first byte in the file.
      begin: index of its first element in the array.
      shape: of the block.
    """

    file: str
    offset: int
    begin: tuple[int, ...]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SavedArray:
    """One array of the state.

    Attributes:
      dtype: NumPy's name of it, such as "float32".
      shape: of the whole array.
      blocks: its parts, in the order of ``begin``; together they are all of it.
      key: of random keys the name of their implementation; the array is their data.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    key: str | None = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A checkpoint's description.

    Attributes:
      step: that the state is of.
      identity: what a run must agree on to load it.
      bad_ids: for each feature those mended so far.
      files: the bytes of each file.
      arrays: by dotted path in the state, such as "storages.rb_64".
      tables: where their rows lie in the arrays of storages, by name.
    """

    step: int
    identity: Mapping[str, Any]
    bad_ids: Mapping[str, int]
    files: Mapping[str, int]
    arrays: Mapping[str, SavedArray]
    tables: Mapping[str, TableLayout]

    @property
    def table_rows(self) -> dict[str, int]:
        """Of each table, by name."""
        return {name: layout[-1].end for name, layout in self.tables.items()}

    def to_json(self) -> str:
        """``from_json`` is its inverse."""
        value = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        for array in value["arrays"].values():
            array["blocks"] = [block._asdict() for block in array["blocks"]]
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads what ``to_json`` wrote.

        Raises:
          ForeignCheckpointError: if it is of a version that is not known here.
          CheckpointError: if it is no manifest.
        """
        try:
            value = json.loads(text)
            found = value.pop("format"), value.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f"{NAME} is no description") from None
        if found not in [(FORMAT, VERSION), (FORMAT, 1)]:
            raise ForeignCheckpointError(
                f"{NAME} is of {found[0]!r}, version {found[1]}; this program reads "
                f"{FORMAT!r}, version {VERSION} and 1"
            )
        of_table = _ranges if found[1] == VERSION else _ranges_of_version_1
        try:
            arrays = {name: _array(each) for name, each in value["arrays"].items()}
            tables = {name: of_table(each) for name, each in value["tables"].items()}
            return cls(**value | {"arrays": arrays, "tables": tables})
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{NAME} lacks something: {error!r}") from None


def _array(value: dict[str, Any]) -> SavedArray:
    blocks = tuple(Block(**_tuples(block)) for block in value["blocks"])
    return SavedArray(**_tuples(value) | {"blocks": blocks})


def _ranges(value: Any) -> TableLayout:
    return tuple(RangeLayout(**_tuples(each)) for each in value)


def _ranges_of_version_1(value: dict[str, Any]) -> TableLayout:
    """A table was in one storage; the first rows of some were not in turn."""
    if value.get("limits"):
        raise ForeignCheckpointError(
            f"{NAME} is of version 1, with rows of a table dealt to its row shards, "
            "which this program cannot read: load it with the program that wrote it, "
            "and save it under a plan without row shards in cluster rb"
        )
    slots = _tuples(value["first_slots"])
    return (RangeLayout(value["storage"], 0, value["rows"], value["dim"], slots),)


def _tuples(value: Any) -> Any:
    """With JSON's lists as tuples; a dict's values alone."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
