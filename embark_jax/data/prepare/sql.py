"""DuckDB, embedded: queries of Arrow tables, and names and texts in its SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

_SHARE_OF_MEMORY = 0.5
"""Of this machine's memory; what is larger goes to disk. Chunks of files and what is
written of them come on top."""


class Database:
    """A database in memory. Queries see the Arrow tables that they are given by name.

    Args:
      spill: folder for what does not fit into memory, made when it is needed; None
        makes one among the machine's temporary files, which goes with the database.
      threads: number of threads; None takes one per core.
      memory_bytes: most memory of queries; None takes half of the machine's.
    """

    def __init__(
        self,
        spill: Path | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
    ):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = memory_bytes or int(total * _SHARE_OF_MEMORY)
        if spill is None:  # which nobody else can read, or know by name before
            spill = Path(tempfile.mkdtemp(prefix="embark-"))
            weakref.finalize(self, shutil.rmtree, spill, ignore_errors=True)
        self._connection = duckdb.connect(
            config={
                "memory_limit": f"{limit // 2**20}MiB",
                "temp_directory": str(spill),
                "threads": threads or os.cpu_count() or 1,
            }
        )

    def run(self, query: str, **tables: pa.Table) -> None:
        """Runs statements."""
        with self._run(query, tables) as done:
            done.complete()

    def rows(self, query: str, **tables: pa.Table) -> list[tuple]:
        """Returns the rows of a short result."""
        with self._run(query, tables) as done:
            return done.fetchall()

    def table(self, query: str, **tables: pa.Table) -> pa.Table:
        """Returns a result."""
        with self._run(query, tables) as done:
            return _arrow(done.to_arrow_table)

    def batches(
        self, query: str, rows: int, **tables: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        """Yields a large result in pieces of about so many rows."""
        with self._run(query, tables) as done:
            yield from _arrow(lambda: done.to_arrow_reader(rows))

    @contextlib.contextmanager
    def tables(self, **tables: pa.Table) -> Iterator[None]:
        """Lets all queries of a block see Arrow tables."""
        for name, table in tables.items():
            self._connection.register(name, table)
        try:
            yield
        finally:
            for name in tables:
                self._connection.unregister(name)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _run(
        self, query: str, tables: Mapping[str, pa.Table]
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        with self.tables(**tables):
            try:
                yield self._connection.execute(query)
            finally:
                self._connection.complete()


def _arrow(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():  # it advises a form that takes longer to begin
        warnings.simplefilter("ignore", UserWarning)
        return make()


def name(column: str) -> str:
    """Returns the name of a column in SQL, whatever characters it has."""
    return '"' + column.replace('"', '""') + '"'


def text(value: str) -> str:
    """Returns a text in SQL."""
    return "'" + value.replace("'", "''") + "'"


def texts(values: tuple[str, ...]) -> str:
    """Returns a list of texts in SQL."""
    return f"[{', '.join(map(text, values))}]"
