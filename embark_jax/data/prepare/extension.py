"""Prepares new data with the rows of earlier ones (``--extend``): a value that had a
row keeps it, new values get new rows after those, and numbers keep their transforms.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.agreement import EXTENSION, differences, parts
from embark_jax._base.files import read_arrow
from embark_jax._base.storage import local
from embark_jax.data import manifest as manifests
from embark_jax.data.batch import DataError
from embark_jax.data.manifest import Manifest
from embark_jax.data.prepare.recipe import Recipe
from embark_jax.data.prepare.vocabulary import is_text

EXTENDS = "extends"
"""The key of ``made_from`` with the digest of the data that these extend."""


@dataclasses.dataclass(frozen=True)
class Earlier:
    """Prepared data that new ones extend.

    Attributes:
      folder: their folder.
      manifest: their manifest.
    """

    folder: Path
    manifest: Manifest

    @classmethod
    def open(
        cls, folder: Path, recipe: Recipe, made_from: Mapping[str, Any]
    ) -> Earlier:
        """Opens prepared data, of which new ones are an extension.

        Args:
          folder: their folder.
          recipe: recipe of the new data.
          made_from: what the new data are made from.

        Raises:
          DataError: if they are not wholly prepared, or otherwise than the new ones.
        """
        manifest = manifests.load(local(folder))
        features = [feature.name for feature in recipe.features]
        names = {"dense": recipe.dense, "features": features, "labels": recipe.labels}
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

    @property
    def hashed(self) -> dict[str, int]:
        """Returns the rows of the tables that are hashed."""
        rows = self.manifest.table_rows
        return {table: rows[table] for table in self.manifest.hashed_tables}

    def extended(self, table: str, values: pa.Table, max_rows: int) -> pa.Table:
        """Returns the values of a table in the order of their rows, with counts of all
        days: the earlier ones as they were, then those of ``values`` that are new.

        Raises:
          DataError: if there are more values than rows, or they are of other types.
        """
        path = self.folder / manifests.vocabulary_file(table)
        before = read_arrow(path)
        if not len(before):
            return values
        kinds = before["key"].type, values["key"].type
        if len(values) and is_text(kinds[0]) != is_text(kinds[1]):
            raise DataError(
                f"table {table!r}: values are {kinds[1]}, but {kinds[0]} in {path}; "
                "write the column as it was, or prepare anew without --extend"
            )
        both_numbers = len(values) and kinds[0] != kinds[1]
        kind = pa.int64() if both_numbers else kinds[0]
        before, values = _with_keys(before, kind), _with_keys(values, kind)
        options = pc.SetLookupOptions(before["key"].combine_chunks())
        rows = pc.call_function("index_in", [values["key"]], options)
        rows = rows.fill_null(-1).to_numpy()
        new = values.filter(pa.array(rows < 0))
        if len(before) + len(new) > max_rows:
            self.refuse(table, max_rows)
        counts = before["count"].to_numpy().copy()
        counts[rows[rows >= 0]] += values["count"].to_numpy()[rows >= 0]
        before = before.set_column(1, "count", pa.array(counts))
        return pa.concat_tables([before, new]).combine_chunks()

    def refuse(self, table: str, max_rows: int) -> NoReturn:
        """Raises ``DataError``: a table has more values than rows, and may not be
        hashed."""
        raise DataError(
            f"table {table!r}: has more values than --max-rows {max_rows:,}, so it "
            f"would be hashed, which gives those of {self.folder} other rows; raise "
            "--max-rows, or prepare anew without --extend"
        )


def _with_keys(values: pa.Table, kind: pa.DataType) -> pa.Table:
    """Returns the columns ``key`` and ``count``, with keys of a type."""
    return pa.table({"key": values["key"].cast(kind), "count": values["count"]})
