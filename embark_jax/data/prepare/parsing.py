"""First stage: parses raw files into typed samples, one part for each piece of a
file."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.errors import DataError
from embark_jax._base.files import read_arrow, write_arrow
from embark_jax.data.pipeline import in_order
from embark_jax.data.prepare.delimited import OnBadLine
from embark_jax.data.prepare.recipe import Piece, Position, Recipe

_EXAMPLES = 3
"""How many bad lines of each part are kept in words."""
_META = b"embark"


@dataclasses.dataclass(frozen=True)
class SamplePart:
    """Typed samples.

    Attributes:
      path: path of the Arrow file that holds them.
      file: number of the raw file.
      rows: number of samples.
    """

    path: Path
    file: int
    rows: int

    def read(self) -> pa.Table:
        """Reads the samples: label, dense features, values of the features."""
        return read_arrow(self.path)


@dataclasses.dataclass(frozen=True)
class ParsedPart(SamplePart):
    """Typed samples of a piece of a raw file.

    Attributes:
      after: where the next piece of the raw file begins.
      progress: bytes of the raw file on disk up to there.
      skipped: number of bad lines that are left out.
      examples: some of these, in words.
      missing: for each dense feature, how many values are missing.
      raw_rows: number of lines or rows of the piece.
    """

    after: Position
    progress: int
    skipped: int
    examples: tuple[str, ...]
    missing: dict[str, int]
    raw_rows: int


def parse(
    recipe: Recipe,
    folder: Path,
    on_bad_line: OnBadLine,
    workers: int,
    progress: Callable[[int], None],
) -> Iterator[ParsedPart]:
    """Makes all parts of a data set, in order, unless the folder has them.

    Args:
      recipe: the recipe of the data set.
      folder: folder of the parts.
      on_bad_line: what to do with a bad line.
      workers: number of pieces processed at once.
      progress: called with the bytes of raw files on disk that are done.

    Raises:
      DataError: if a raw file cannot be read, or a line is bad and is not skipped.
    """
    before = 0
    for number, raw in enumerate(recipe.raw):
        parts = (folder / f"{number:03}-{i:06}.arrow" for i in itertools.count())
        after = Position()
        for path in parts:
            if not path.exists():
                parts = itertools.chain([path], parts)
                break
            part = _known(path)
            after = part.after
            progress(before + part.progress)
            yield part
        work = zip(parts, raw.pieces(after), strict=False)
        job = _Job(recipe, number, on_bad_line)
        for part in in_order(job, work, workers=workers, depth=workers):
            progress(before + part.progress)
            yield part
        before += raw.path.stat().st_size


class _Job(NamedTuple):
    """Parses a piece of a file and writes the part."""

    recipe: Recipe
    file: int
    on_bad_line: OnBadLine

    def __call__(self, work: tuple[Path, Piece]) -> ParsedPart:
        path, piece = work
        columns, bad = piece.read(self.on_bad_line)
        samples = self.recipe.samples(columns, self.file)
        if len(samples) + len(bad) != piece.rows:
            raise DataError(
                f"{self.recipe.raw[self.file].path}: {piece.rows:,} lines or rows up "
                f"to {piece.after.line - 1:,} became {len(samples):,} samples and "
                f"{len(bad):,} bad lines, which is a mistake of embark_jax; tell its "
                "makers, with this file"
            )
        missing = {name: samples[name].null_count for name in self.recipe.dense}
        if self.recipe.history:
            samples = self.recipe.history.by_hash(samples)
        part = ParsedPart(
            path,
            self.file,
            len(samples),
            piece.after,
            piece.progress,
            len(bad),
            tuple(bad[:_EXAMPLES]),
            missing,
            piece.rows,
        )
        known = dataclasses.asdict(part)
        del known["path"]
        write_arrow(path, samples.replace_schema_metadata({_META: json.dumps(known)}))
        return part


def _known(path: Path) -> ParsedPart:
    """A part that an earlier run wrote."""
    known = json.loads(_schema(path).metadata[_META])
    known["after"] = Position(*known["after"])
    return ParsedPart(path, **known | {"examples": tuple(known["examples"])})


def check_kinds(recipe: Recipe, parts: Sequence[ParsedPart]) -> None:
    """Checks that the values of each table are all text or all whole numbers.

    Raises:
      DataError: if columns that share a table, or files, differ in this.
    """
    kinds: dict[str, set[bool]] = {}
    categories = [f for f in recipe.features if f.name not in recipe.numbers]
    for part in parts:
        schema = _schema(part.path)
        for feature in categories:
            is_text = _is_text(schema.field(feature.name).type)
            kinds.setdefault(feature.table, set()).add(is_text)
    for feature in categories:
        if len(kinds.get(feature.table, ())) > 1:
            _check_kind(recipe, parts, feature.table)


def _check_kind(recipe: Recipe, parts: Sequence[ParsedPart], table: str) -> None:
    first: tuple[bool, str] | None = None
    for part in parts:
        samples = part.read()
        for feature in recipe.features:
            if feature.table != table or _is_empty(samples[feature.name]):
                continue
            is_text = _is_text(samples[feature.name].type)
            where = f"column {feature.name!r} of {recipe.raw[part.file].path}"
            first = first or (is_text, where)
            if first[0] != is_text:
                names = {True: "text", False: "whole numbers"}
                raise DataError(
                    f"{where} has {names[is_text]}, {first[1]} has {names[first[0]]}, "
                    f"and both read table {table!r}: must be of one kind; write both "
                    "alike, or give them tables of their own"
                )


def _schema(path: Path) -> pa.Schema:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).schema


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind)


def _is_empty(values: pa.ChunkedArray) -> bool:
    """Whether no value is there, so that the type says nothing."""
    if pa.types.is_list(values.type):
        values = pc.call_function("list_flatten", [values])
    return values.null_count == len(values)
