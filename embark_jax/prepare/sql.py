"""DuckDB, embedded: queries, Arrow tables in them, and names and texts in its SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa

from embark_jax._base.errors import DataError
from embark_jax._base.memory import host_memory_bytes
from embark_jax._base.temporary import temporary_folder

_SHARE_OF_MEMORY = 0.5
"""Of this machine's memory; what is larger goes to disk."""
Error = duckdb.Error


class Database:
    """A database in memory, whose tables keep the order in which rows came.

    Args:
      spill: folder for what does not fit into memory, made when it is needed; None
        makes one among the machine's temporary files, which goes with the database.
      threads: number of threads; None takes one per core.
    """

    def __init__(self, spill: Path | None = None, threads: int | None = None):
        self._limit = f"{int(host_memory_bytes() * _SHARE_OF_MEMORY) // 2**20}MiB"
        self.spill = spill or temporary_folder(self)
        self._threads = threads or os.cpu_count() or 1
        self._connection = duckdb.connect(
            config={
                "memory_limit": self._limit,
                "temp_directory": str(self.spill),
                "threads": self._threads,
            }
        )
        # It writes to logs, too.
        self._connection.execute("SET enable_progress_bar = false")

    def run(self, query: str, **tables: pa.Table) -> None:
        """Runs statements."""
        with self.seeing(**tables):
            self._connection.execute(query).fetchall()

    def rows(self, query: str, **tables: pa.Table) -> list[tuple]:
        """Returns the rows of a short result."""
        with self.seeing(**tables):
            return self._connection.execute(query).fetchall()

    def table(self, query: str, **tables: pa.Table) -> pa.Table:
        """Returns a result."""
        with self.seeing(**tables), warnings.catch_warnings():
            # It advises a form that plans a prepared statement anew.
            warnings.simplefilter("ignore", UserWarning)
            return self._connection.execute(query).to_arrow_table()

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Returns a result as it is made, which other queries must not interrupt."""
        with self.seeing():
            yield from self._connection.sql(query).to_arrow_reader()

    def types(self, query: str, **tables: pa.Table) -> dict[str, str]:
        """Returns the type of each column of a result, in DuckDB's words."""
        described = self.rows(f"DESCRIBE {query}", **tables)
        return {name: type_ for name, type_, *_ in described}

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Runs the queries of a block in one thread: a sum of floats is the same each
        time, and rows are met in their order."""
        self._connection.execute("SET threads = 1")
        try:
            yield
        finally:
            self._connection.execute(f"SET threads = {self._threads}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        shutil.rmtree(self.spill, ignore_errors=True)

    @contextlib.contextmanager
    def seeing(self, **tables: pa.Table) -> Iterator[None]:
        """Lets the queries of a block see Arrow tables, and a signal end them.

        Raises:
          DataError: if they find too little memory.
        """
        for name, table in tables.items():
            self._connection.register(name, table)
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            what, *_ = str(error).splitlines()
            raise DataError(
                f"{self.spill}: queries may take {self._limit} of memory, half of this "
                f"machine's, and the disk of this folder, and need more: {what}"
            ) from None
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # by an exception of its handler
                raise KeyboardInterrupt from None
            raise
        finally:
            for name in tables:
                self._connection.unregister(name)


def name(column: str) -> str:
    """Returns the name of a column or table in SQL, whatever characters it has.

    Raises:
      DataError: if one is a zero byte, which ends a query.
    """
    return _quoted(column, '"')


def text(value: str) -> str:
    """Returns a text in SQL, in the same way."""
    return _quoted(value, "'")


def _quoted(value: str, quote: str) -> str:
    if "\0" in value:
        raise DataError(f"{value!r} has a zero byte, must be without")
    return quote + value.replace(quote, 2 * quote) + quote


def texts(values: tuple[str, ...]) -> str:
    """Returns texts in SQL, with commas between them."""
    return ", ".join(map(text, values))
