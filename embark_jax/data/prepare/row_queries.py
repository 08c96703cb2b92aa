"""Encodes raw rows in memory: the unique values of all their columns go, as one column
of texts, through one query, which is planned once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax.data.batch import DataError
from embark_jax.data.manifest import LABEL, Manifest
from embark_jax.data.prepare import own_files, sql
from embark_jax.data.prepare.columns import Columns
from embark_jax.data.prepare.encode import vocabulary_table
from embark_jax.data.prepare.raw_files import shown
from embark_jax.data.prepare.values import Column
from embark_jax.data.prepare.vocabulary import MISSING_ID, RARE_ID

Values = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Sample, place and id of each value of a feature."""


class RowQueries:
    """Encodes rows in memory by the rule of ``values``.

    Args:
      database: has the vocabularies, whose values this joins in a table of texts.
      manifest: describes the features.
      columns: the columns of rows.
    """

    def __init__(self, database: sql.Database, manifest: Manifest, columns: Columns):
        self._database, self._manifest, self._columns = database, manifest, columns
        known = own_files.label_columns(columns, required=False)
        known += own_files.input_columns(columns, manifest.text_features)
        self._by_name = {column.name: column for column in known}
        self._rules: dict[pa.Schema, list[str]] = {}
        self._tables = {table: t for t, table in enumerate(manifest.tables_with_values)}
        parts = [
            f"SELECT {t} AS t, key::VARCHAR AS key, id FROM {vocabulary_table(table)}"
            for table, t in self._tables.items()
        ] or ["SELECT 0 AS t, '' AS key, 0 AS id LIMIT 0"]
        # A search for few values skips most of a table that is in their order.
        database.run(
            f"CREATE TABLE known AS FROM ({' UNION ALL '.join(parts)}) ORDER BY t, key;"
            "CREATE TABLE looked_up (i BIGINT, t INT, rows BIGINT, v VARCHAR)"
        )
        id_ = f"coalesce(id, {RARE_ID})"
        if manifest.hashed_tables:
            id_ = (
                f"CASE WHEN rows = 0 THEN {id_} ELSE 1 + md5_number_lower(given.key) % "
                "(rows - 1) END::BIGINT"
            )
        database.run(
            f"PREPARE look_up AS SELECT i, given.key, {id_} AS id, TRY_CAST(given.key "
            "AS DOUBLE) AS number, TRY_CAST(given.key AS BIGINT) AS whole FROM (SELECT "
            "i, t, rows, canonical(v) AS key FROM looked_up) AS given LEFT JOIN known "
            "ON known.t = given.t AND known.key = given.key"
        )

    def __call__(
        self, rows: pa.Table
    ) -> tuple[pa.Table, dict[str, Values], dict[str, int]]:
        """Returns labels, weights and numbers of rows; the values of each feature; and
        how many values of each were cut.

        Raises:
          DataError: if a value breaks a rule.
        """
        columns = [self._by_name[name] for name in rows.column_names]
        rules = self._rules.get(rows.schema)
        if rules is None:
            rules = self._rules[rows.schema] = self._check_types(rows, columns)
        given = [
            _Given.of(column, array, rule)
            for column, array, rule in zip(columns, rows.columns, rules, strict=True)
        ]
        looked_up = self._look_up(given)
        facts, values, cut, start = {}, {}, {}, 0
        for each in given:
            found = {
                n: part[start : start + len(each.texts)]
                for n, part in looked_up.items()
            }
            start += len(each.texts)
            if each.column.kind == "number":
                facts[each.column.alias or each.column.name] = each.numbers(
                    found, len(rows)
                )
                continue
            values[each.column.name], left_out = self._values(each, found)
            cut[each.column.name] = left_out
        return self._facts(facts), values, cut

    def _check_types(self, rows: pa.Table, columns: list[Column]) -> list[str]:
        """Returns what the values of each column must be, in words.

        Raises:
          DataError: if a column is of a type that it may not have.
        """
        names = [f"c{i}" for i in range(len(columns))]
        types = self._database.types(
            "FROM rows", rows=rows.slice(0, 0).rename_columns(names)
        )
        rules = []
        for column, type_ in zip(columns, types.values(), strict=True):
            try:
                rules.append(column.typed("v", type_).rule)
            except DataError as error:
                raise DataError(f"rows: column {column.name}: {error}") from None
        return rules

    def _look_up(self, given: list[_Given]) -> dict[str, np.ndarray]:
        """Returns what the query finds for the texts of all columns."""
        t, rows = [], []
        for each in given:
            table, hashed = -1, 0
            if each.column.kind != "number":
                name = self._manifest.features[each.column.name].table
                table = self._tables.get(name, -1)
                if name in self._manifest.hashed_tables:
                    hashed = self._manifest.table_rows[name]
            t.append(np.full(len(each.texts), table, np.int32))
            rows.append(np.full(len(each.texts), hashed))
        texts = pa.concat_arrays([each.texts for each in given])
        columns = [np.arange(len(texts)), np.concatenate(t), np.concatenate(rows)]
        table = pa.table([*map(pa.array, columns), texts], ["i", "t", "rows", "v"])
        self._database.refill("looked_up", table)
        found = self._database.table("EXECUTE look_up")
        order = np.argsort(found["i"].to_numpy())
        return {
            "id": found["id"].to_numpy()[order],
            "number": found["number"].to_numpy()[order],
            "whole": found["whole"].fill_null(-1).to_numpy()[order],
            "is whole": found["whole"].is_valid().to_numpy()[order],
            "is there": found["key"].is_valid().to_numpy()[order],
        }

    def _values(
        self, given: _Given, found: dict[str, np.ndarray]
    ) -> tuple[Values, int]:
        column, feature = given.column, self._manifest.features[given.column.name]
        ids = found["id"]
        if not column.is_text:
            low, high = column.bounds or (-(2**63), 2**63 - 1)
            whole = found["whole"]
            good = found["is whole"] & (whole >= low) & (whole <= high)
            given.refuse(found["is there"] & ~(good & given.are_whole()))
        is_numbered = feature.table in self._manifest.numbered_tables
        ids = found["whole"] if is_numbered else ids
        # The last one is for values that are null.
        ids = np.append(np.where(found["is there"], ids, -1), -1)[given.of_value]
        n = given.row
        if not given.is_list:
            if not is_numbered:
                ids = np.where(ids < 0, MISSING_ID, ids)
            there = ids >= 0
            return (n[there], np.zeros(there.sum(), np.int64), ids[there]), 0
        n, ids = n[ids >= 0], ids[ids >= 0]
        starts = np.searchsorted(n, n)
        place, hotness = np.arange(len(n)) - starts, feature.stored_hotness
        if feature.pooling == "none":  # the last events, behind the padding
            place += hotness - (np.searchsorted(n, n, side="right") - starts)
        kept = (place >= 0) & (place < hotness)
        return (n[kept], place[kept], ids[kept]), int(len(kept) - kept.sum())

    def _facts(self, numbers: dict[str, np.ndarray]) -> pa.Table:
        """Returns columns of numbers, with the label made of those of labels."""
        names = [f"{LABEL} of {name}" for name in self._columns.targets]
        marks = [numbers.pop(name) for name in names if name in numbers]
        columns = {n: pa.array(each, from_pandas=True) for n, each in numbers.items()}
        if len(marks) == len(names):
            least = self._columns.positive_from
            if least is not None:
                marks = [np.where(np.isnan(m), m, m >= least) for m in marks]
            label = np.stack(marks, axis=1).astype(np.float32)
            flat = pa.array(label.ravel(), from_pandas=True)
            columns[LABEL] = flat
            if self._columns.labels:
                columns[LABEL] = pa.FixedSizeListArray.from_arrays(flat, len(names))
        return pa.table(columns)


class _Given(NamedTuple):
    """A column of rows.

    Attributes:
      column: what it is.
      rule: what its values must be, in words.
      texts: its unique values, as texts.
      of_value: for each value its place among these, or -1 for null.
      row: for each value the row that it is in.
      is_list: whether rows have lists.
    """

    column: Column
    rule: str
    texts: pa.Array
    of_value: np.ndarray
    row: np.ndarray
    is_list: bool

    @classmethod
    def of(cls, column: Column, array: pa.ChunkedArray, rule: str) -> _Given:
        """Raises ``DataError`` if texts are no UTF-8, or floats no exact integers."""
        values, where = array.combine_chunks(), f"rows: column {column.name}"
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:  # such as half of a surrogate pair
            raise DataError(f"{where}: is no UTF-8 text ({error})") from None
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(
            values.type
        )
        row = np.arange(len(values))
        if is_text and column.separator is not None:
            values = pc.call_function(
                "split_pattern", [values], pc.SplitPatternOptions(column.separator)
            )
        is_list = hasattr(values.type, "value_type")
        if is_list:
            row = pc.call_function("list_parent_indices", [values]).to_numpy()
            values = values.flatten()
        if pa.types.is_floating(values.type) and column.kind == "category":
            exact = 2.0 ** {16: 11, 32: 24, 64: 53}[values.type.bit_width]
            far = np.abs(values.to_numpy(zero_copy_only=False)) > exact
            if far.any():
                value = values[int(far.argmax())].as_py()
                raise DataError(
                    f"{where}: value is '{value}', must be integers or text: "
                    f"{values.type} has no exact integers beyond {exact:,.0f}"
                )
        if pa.types.is_boolean(values.type) and column.kind == "number":
            values = values.cast(pa.int8())
        coded = values.cast(pa.string()).dictionary_encode()
        of_value = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        is_list |= column.separator is not None
        return cls(column, rule, coded.dictionary, of_value, row, is_list)

    def numbers(self, found: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Returns the number of each row, NaN where it is missing."""
        numbers, (low, high) = found["number"], self.column.bounds or (-np.inf, np.inf)
        with np.errstate(over="ignore"):
            good = np.isfinite(numbers.astype(np.float32))
        plain = pc.call_function(
            "match_substring", [self.texts], pc.MatchSubstringOptions("_")
        )
        good &= (numbers >= low) & (numbers <= high)
        good &= ~plain.to_numpy(zero_copy_only=False)
        self.refuse(found["is there"] & ~good)
        numbers = np.append(np.where(found["is there"], numbers, np.nan), np.nan)
        return numbers[self.of_value]

    def are_whole(self) -> np.ndarray:
        """Says which texts are whole numbers, in any of the ways to write one."""
        options = pc.MatchSubstringOptions(r"^\s*[+-]?\d+(\.0*)?\s*$")
        found = pc.call_function("match_substring_regex", [self.texts], options)
        return found.to_numpy(zero_copy_only=False)

    def refuse(self, bad: np.ndarray) -> None:
        """Raises ``DataError`` with the first value that is one of the bad ones."""
        if bad.any():
            first = int(np.append(bad, False)[self.of_value].argmax())
            value = self.texts[int(self.of_value[first])].as_py()
            raise DataError(
                f"rows, row {self.row[first]}: column {self.column.name}: value is "
                f"{shown(value.encode())}, {self.rule}"
            )
