"""Prepares new data with the rows of earlier ones (``--extend``): a value that had a
row keeps it, new values get new rows after those, and numbers keep their transforms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from embark_jax._base.agreement import EXTENSION, differences, parts
from embark_jax._base.storage import local
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.prepare import sql
from embark_jax.data.prepare.vocabulary import vocabulary_file
from embark_jax.data.table_values import EXTENDS as EXTENDS
from embark_jax.data.table_values import TableValues


class Earlier(TableValues):
    """Prepared data that new ones extend."""

    @classmethod
    def open(
        cls, folder: Path, made_from: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Earlier:
        """Opens prepared data, of which new ones are an extension.

        Args:
          folder: their folder.
          made_from: what the new data are made from.
          names: names of their columns.

        Raises:
          DataError: if they are not wholly prepared, or otherwise than the new ones.
        """
        manifest = manifests.load(local(folder))
        now = json.loads(json.dumps({**made_from, **names}))
        before = {**manifest.made_from, **manifest.column_names}
        theirs, ours = parts(before, EXTENSION), parts(now, EXTENSION)
        if changed := differences(theirs, ours, "there"):
            raise DataError(
                f"--extend {folder}: was prepared otherwise ({'; '.join(changed)}), "
                f"must agree in {', '.join(EXTENSION)}, so that its rows keep their "
                "meaning; prepare with its options, or anew without --extend"
            )
        return cls(local(folder), manifest)

    def extend(
        self, database: sql.Database, table: str, min_count: int, max_rows: int
    ) -> None:
        """Makes ``kept`` of ``counted``: the values of a table in the order of their
        rows, with counts of all days: the earlier ones as they were, then those that
        are new and frequent enough.

        Raises:
          DataError: if there are more values than rows, or they are of other types.
        """
        before, path = self.vocabulary(table), self.folder / vocabulary_file(table)
        if before.column_names != ["key", "count"] or before["count"].type != _COUNT:
            raise DataError(f"{path}: must have 'key', and 'count' of {_COUNT}")
        (kind,) = database.rows("SELECT any_value(key) FROM counted")[0]
        known = before["key"][0].as_py() if len(before) else kind
        if None not in (kind, known) and type(kind) is not type(known):
            raise DataError(
                f"table {table!r}: values are {_KINDS[type(kind)]}, but "
                f"{before['key'].type} in {path}; write the column as it was, or "
                "prepare anew without --extend"
            )
        if kind is None:  # a column without values is of any kind
            database.run("ALTER TABLE counted ALTER key TYPE VARCHAR")
        places = pa.array(np.arange(len(before)))
        database.run(
            "CREATE OR REPLACE TABLE kept AS SELECT key, count, row_number() OVER "
            "(ORDER BY place NULLS LAST, count DESC, key) AS place FROM ("
            "SELECT coalesce(before.key, counted.key) AS key, before.place AS place, "
            "coalesce(before.count, 0) + coalesce(counted.count, 0) AS count "
            "FROM before FULL JOIN counted ON before.key = counted.key "
            f"WHERE before.key IS NOT NULL OR counted.count >= {min_count})",
            before=before.append_column("place", places),
        )
        (values,) = database.rows("SELECT count(*) FROM kept")[0]
        if values > max_rows:
            self.refuse(table, max_rows)

    def refuse(self, table: str, max_rows: int) -> NoReturn:
        """Raises ``DataError``: a table has more values than rows, and may not be
        hashed."""
        raise DataError(
            f"table {table!r}: has more values than --max-rows {max_rows:,}, so it "
            f"would be hashed, which gives those of {self.folder} other rows; raise "
            "--max-rows, or prepare anew without --extend"
        )


_KINDS = {str: "text", int: "whole numbers"}
_COUNT = pa.int64()
