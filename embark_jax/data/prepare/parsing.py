"""First stage: parses raw files into typed samples, one chunk of samples for each chunk
of a raw file."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax._base.files import read_arrow, write_arrow
from embark_jax.data.pipeline import Workers, in_order
from embark_jax.data.prepare.recipe import RawChunk, Recipe
from embark_jax.data.prepare.vocabulary import flat, is_text
from embark_jax.plans.options import OnBadLine

_EXAMPLES = 3
"""How many bad lines of each chunk are kept in words."""


@dataclasses.dataclass(frozen=True)
class SampleChunk:
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
class ParsedChunk(SampleChunk):
    """Typed samples of a chunk of a raw file.

    Attributes:
      skipped: number of bad lines that are left out.
      examples: some of these, in words.
      missing: for each dense feature, how many values are missing.
      raw_rows: number of lines or rows of the chunk.
    """

    skipped: int
    examples: tuple[str, ...]
    missing: dict[str, int]
    raw_rows: int


def parse(
    recipe: Recipe,
    folder: Path,
    on_bad_line: OnBadLine,
    workers: Workers,
) -> Iterator[ParsedChunk]:
    """Makes all chunks of a data set, in order.

    Args:
      recipe: the recipe of the data set.
      folder: folder of the chunks.
      on_bad_line: what to do with a bad line.
      workers: threads; progress is bytes of raw files on disk.

    Raises:
      DataError: if a raw file cannot be read, or a line is bad and is not skipped.
    """
    before, total = 0, sum(raw.path.stat().st_size for raw in recipe.raw)
    for number, raw in enumerate(recipe.raw):
        paths = (folder / f"{number:03}-{i:06}.arrow" for i in itertools.count())

        def parse_chunk(work: tuple[Path, RawChunk], number: int = number):
            path, chunk = work
            return _parse(recipe, number, path, chunk, on_bad_line), chunk.progress

        work = zip(paths, raw.chunks(), strict=False)
        threads = workers.count
        made = in_order(parse_chunk, work, workers=threads, depth=threads)
        with contextlib.closing(made) as parsed:
            for chunk, progress in parsed:
                workers.progress("parse", before + progress, total)
                yield chunk
        before += raw.path.stat().st_size


def _parse(
    recipe: Recipe, file: int, path: Path, raw: RawChunk, on_bad_line: OnBadLine
) -> ParsedChunk:
    """Parses a chunk of a raw file and writes its samples."""
    columns, bad = raw.read(on_bad_line)
    raw_path = recipe.raw[file].path
    samples = recipe.samples(columns, file)
    if len(samples) + len(bad) != raw.rows:
        raise DataError(
            f"{raw_path}: {raw.rows:,} lines or rows "
            f"became {len(samples):,} samples and {len(bad):,} bad lines, which is a "
            "mistake of embark_jax; tell its makers, with this file"
        )
    missing = {name: samples[name].null_count for name in recipe.dense}
    if recipe.history:
        samples = recipe.history.by_hash(samples)
    examples = itertools.islice(bad.items(), _EXAMPLES)
    write_arrow(path, samples)
    return ParsedChunk(
        path=path,
        file=file,
        rows=len(samples),
        skipped=len(bad),
        examples=tuple(f"{raw_path}, line {line}: {text}" for line, text in examples),
        missing=missing,
        raw_rows=raw.rows,
    )


def check_kinds(recipe: Recipe, chunks: Sequence[ParsedChunk]) -> None:
    """Checks that the values of each table are all text or all whole numbers.

    Raises:
      DataError: if columns that share a table, or files, differ in this.
    """
    categories = [f for f in recipe.features if f.name not in recipe.numbers]
    kinds: dict[str, set[bool]] = {feature.table: set() for feature in categories}
    for chunk in chunks:
        schema = _schema(chunk.path)
        for feature in categories:
            kinds[feature.table].add(is_text(schema.field(feature.name).type))
    mixed = [f for f in categories if len(kinds[f.table]) > 1]
    names = {True: "text", False: "whole numbers"}
    first: dict[str, tuple[bool, str]] = {}
    for chunk in chunks if mixed else ():
        samples = chunk.read()
        for feature in mixed:
            values = samples[feature.name].combine_chunks()
            singles = flat(values)
            if singles.null_count == len(singles):
                continue  # its type says nothing
            kind = is_text(values.type)
            where = f"column {feature.name!r} of {recipe.raw[chunk.file].path}"
            first_kind, first_where = first.setdefault(feature.table, (kind, where))
            if first_kind != kind:
                raise DataError(
                    f"{where} has {names[kind]}, {first_where} has "
                    f"{names[first_kind]}, and both read table {feature.table!r}: must "
                    "be of one kind; write both alike, or give them tables of their own"
                )


def _schema(path: Path) -> pa.Schema:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).schema
