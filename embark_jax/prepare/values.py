"""The rule that says which values are the same: for training samples of every source,
and for raw rows that are scored later, whatever they are in.

A value is missing, a text or a whole number:

- Blanks around a text do not count.
- Null, NaN and the texts in MISSING are missing. In a list they are left out, but in
  one of events, as a sequence is, they keep their place.
- A Boolean is the text ``true`` or ``false``, and so are True, TRUE, False and FALSE.
- A number is the text of its decimal digits, without plus, leading zeros, or zeros that
  end its fraction: 7, 007, +7 and 7.0 are ``7``, and 2.50 is ``2.5``. So is a small
  one as programs write floats: 1e-05 is ``0.00001``. Other exponents stay texts.
- A float that is no exact whole number any more is refused, since ids are integers.

A time is a whole number of 64 bits, another finite number, or a date to the
microsecond, with a zone or without. Nanoseconds of Parquet are kept.

A column of integers has whole numbers, unless training had text. Integers of 64 bits
without a sign, up to 2^64 - 1, are texts.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from embark_jax._base.errors import DataError
from embark_jax.prepare import sql

MISSING = (
    "",
    "NULL",
    "null",
    "NaN",
    "nan",
    "-NaN",
    "-nan",
    "None",
    "\\N",
    "<NA>",
    "NA",
    "N/A",
    "n/a",
    "#NA",
    "#N/A",
    "#N/A N/A",
    "NaT",
)
"""The texts that stand for a missing value: those of databases, and those that the
readers of data frames take for one."""
BLANKS = " \t\r\n\v\f\u00a0"
_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_INTEGERS |= {"UTINYINT", "USMALLINT", "UINTEGER"}
_FLOATS = {"FLOAT": 2**24, "DOUBLE": 2**53}
"""Types of floats, and the largest whole number up to which each has all others."""
_AS_TEXT = {"BOOLEAN", '"NULL"'}
_NUMBERS = {*_INTEGERS, *_FLOATS, "UBIGINT", "HUGEINT", "UHUGEINT", *_AS_TEXT}
_ROUNDS_TO_INFINITY = "3.4028235677973366e38"
"""The least number that is infinite in float32, 2^128 - 2^103."""
_EMPTY = ("",)
_SPLITS = {"train": 0, "valid": 1, "val": 1, "dev": 1, "test": 2}
"""The beginnings of the names of splits, in names of files and in columns."""

_PLAIN = "[A-Za-z_][!-~]*|[1-9][0-9]*|0"
"""Most texts are the one way to write their value; a pattern tells soonest."""
_WORDS = (*MISSING, "True", "TRUE", "False", "FALSE")
_DATE = r"[+-]?\d+[-/]\d+[-/]\d+([ T]+\d+:\d+(:\d+(\.\d*)?)?)?"
"""A date and perhaps a time of it, without a zone."""
_MACROS = rf"""
CREATE OR REPLACE MACRO present_values(l) AS list_transform(
  list_transform(l, lambda x: trim(x, {sql.text(BLANKS)})),
  lambda x: CASE WHEN NOT list_contains([{sql.texts(MISSING)}], x) THEN x END);
CREATE OR REPLACE MACRO present(v) AS present_values([v])[1];
CREATE OR REPLACE MACRO decimal_of(v) AS
  regexp_replace(regexp_replace(regexp_replace(regexp_replace(v,
    '^([+-]?)\.(\d+)$', '\10.\2'),
    '^(?:\+|(-))?0*(\d+)(?:\.0*)?$', '\1\2'),
    '^(?:\+|(-))?0*(\d+)\.(\d*[1-9])0*$', '\1\2.\3'),
    '^-0$', '0');
CREATE OR REPLACE MACRO digits_of(v) AS decimal_of(concat(
  if(starts_with(v, '-'), '-', ''), '0.',
  repeat('0', regexp_extract(v, '\d+$')::INT - 1),
  replace(regexp_extract(v, '^-?([\d.]+)', 1), '.', '')));
CREATE OR REPLACE MACRO one_way(v) AS CASE
  WHEN contains(v, 'e-') AND regexp_full_match(v, '-?\d(\.\d+)?e-\d\d\d?')
  THEN digits_of(v)
  WHEN ascii(v) BETWEEN 43 AND 48 OR ascii(v) BETWEEN 49 AND 57 AND contains(v, '.')
  THEN decimal_of(v)
  WHEN v IN ('True', 'TRUE') THEN 'true' WHEN v IN ('False', 'FALSE') THEN 'false'
  ELSE v END;
CREATE OR REPLACE MACRO canonical_values(l) AS list_transform(l, lambda v: CASE
  WHEN regexp_full_match(v, '{_PLAIN}') AND NOT list_contains([{sql.texts(_WORDS)}], v)
  THEN v
  ELSE list_transform(present_values([v]), lambda x: one_way(x))[1] END);
CREATE OR REPLACE MACRO canonical(v) AS canonical_values([v])[1];
CREATE TYPE IF NOT EXISTS time_kind AS ENUM
  ('whole', 'number', 'date', 'instant', 'nanoseconds');
CREATE OR REPLACE MACRO time_value(k, a, n) AS CASE WHEN a IS NOT NULL OR isfinite(n)
  THEN {{'kind': k::time_kind, 'at': a::BIGINT, 'number': n::DOUBLE}} END;
CREATE OR REPLACE MACRO time_of(v) AS list_transform([present(v)], lambda x: CASE
  WHEN regexp_full_match(x, '[+-]?\d+')
  THEN time_value('whole', TRY_CAST(x AS BIGINT), NULL)
  WHEN regexp_full_match(x, '{_DATE}')
  THEN time_value('date', epoch_us(TRY_CAST(x AS TIMESTAMP)), NULL)
  WHEN regexp_full_match(x, '{_DATE} ?[[:alpha:]+-].*')
  THEN time_value('instant',
    epoch_us(TRY_CAST(regexp_replace(x, ' ([+-])', '\1') AS TIMESTAMPTZ)), NULL)
  WHEN NOT contains(x, '_') THEN time_value('number', NULL, TRY_CAST(x AS DOUBLE))
  END)[1];
"""
"""Functions of texts: ``present`` is null for missing ones; ``canonical`` is the one
way to write a value; ``time_of`` is a time, null for what is none. They are made of
functions of lists, since DuckDB computes the argument of a macro anew wherever the
macro names it, but that of a lambda once."""


def define(database: sql.Database) -> None:
    """Defines the rule in a database."""
    database.run(_MACROS)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of raw files, and what it becomes.

    Attributes:
      name: its name.
      kind: "integer", "number", "hex" (8 digits, as Criteo's: 32 bits), "category",
        "weights", "split" or "time". A category may be in lists, weights are; "lists"
        stands for all lists beside each other.
      required: whether every line needs a value.
      bounds: smallest and largest number allowed.
      missing: texts that stand for a missing value; None takes those of the rule above,
        and of an integer or hex column, or one with ``text``, empty ones alone.
      decimal: the sign before the fraction of a number in text.
      text: whether each text is a value as it is: 007, 1.10 and NA, too.
      separator: the separator between the values of a list in text, if any.
      is_text: whether training had texts; None takes what the column is.
      events: whether its lists are of events: a missing value keeps its place.
      beside: name of the lists that must be as long; None leaves all lengths open.
      in_lists: whether other files have lists, where this one has nothing at all.
      texts: the only texts that a single value may be; empty takes any.
      rule: what its values must be, in words; None takes those of its kind.
      alias: its name in queries, if it is another.
    """

    name: str
    kind: Literal[
        "integer", "number", "hex", "category", "weights", "split", "time", "lists"
    ]
    required: bool = False
    bounds: tuple[float, float] | None = None
    missing: tuple[str, ...] | None = None
    decimal: str = "."
    text: bool = False
    separator: str | None = None
    is_text: bool | None = None
    events: bool = False
    beside: str | None = None
    in_lists: bool = False
    texts: tuple[str, ...] = ()
    rule: str | None = None
    alias: str | None = None

    def typed(self, raw: str, type_: str) -> Typed:
        """Returns what makes values of the raw ones.

        Args:
          raw: SQL of the raw value.
          type_: its type in DuckDB.

        Raises:
          DataError: if values of this type cannot be those of such a column.
        """
        if type_.startswith("ENUM"):
            raw, type_ = f"({raw})::VARCHAR", "VARCHAR"
        made = {
            "integer": self._integer,
            "number": self._number,
            "hex": self._hex,
            "category": self._category,
            "weights": self._weights,
            "split": self._split,
            "time": self._time,
        }[self.kind](raw, type_)
        check, rule = made.check, made.rule
        if self.bounds is not None and self.kind != "category":
            check += f" AND {self._within(made.value)}"
            rule = "must be from {:g} to {:g}".format(*self.bounds)
        if self.texts:
            check += f" AND {made.value} IN ({sql.texts(self.texts)})"
            rule = f"must be one of {', '.join(self.texts)}"
        if self.required:
            check += f" AND {made.value} IS NOT NULL"
        return dataclasses.replace(made, check=check, rule=self.rule or rule)

    def _within(self, value: str) -> str:
        if self.bounds is None:
            return "true"
        low, high = self.bounds
        return f"coalesce({value} BETWEEN {low!r} AND {high!r}, true)"

    def _present(self, raw: str) -> str:
        """Returns SQL of a text, null if it stands for a missing value."""
        if self.missing is None and not self.text:
            return f"present({raw})"
        text = raw if self.text else f"trim({raw}, {sql.text(BLANKS)})"
        missing = _EMPTY if self.missing is None else self.missing
        return f"CASE WHEN {text} NOT IN ({sql.texts(missing)}) THEN {text} END"

    def _integer(self, raw: str, type_: str) -> Typed:
        if type_ in _INTEGERS:
            return Typed(f"({raw})::BIGINT", "true", "must be an integer")
        if type_ != "VARCHAR":
            raise DataError(f"type is {type_}, must be integers")
        missing = sql.texts(self.missing or _EMPTY)
        given = f"CASE WHEN {raw} NOT IN ({missing}) THEN {raw} END"
        value = f"TRY_CAST({given} AS BIGINT)"
        # The text of most integers is that of DuckDB; patterns cost more time.
        exact = f"coalesce({value}::VARCHAR = {given}, {given} IS NULL)"
        other = f"{value} IS NOT NULL AND regexp_full_match({given}, '-?[0-9]+')"
        check = f"CASE WHEN {exact} THEN true ELSE {other} END"
        return Typed(value, check, "must be an integer")

    def _hex(self, raw: str, type_: str) -> Typed:
        value = f"TRY_CAST('0x' || {raw} AS UINTEGER)"
        # The cast takes 0000_00f, too.
        digits = f"strlen({raw}) = 8 AND {value} IS NOT NULL"
        check = f"(coalesce({raw}, '') = '' OR {digits} AND NOT contains({raw}, '_'))"
        return Typed(value, check, "must be 8 hexadecimal digits")

    def _number(self, raw: str, type_: str) -> Typed:
        number = f"({raw})::DOUBLE"
        check = "true"
        if type_ == "VARCHAR":
            given, others = self._present(raw), "_"
            number = f"TRY_CAST({given} AS DOUBLE)"
            if self.decimal == ",":  # a dot would be between thousands
                number, others = f"TRY_CAST(replace({given}, ',', '.') AS DOUBLE)", "."
            check = f"({number} IS NOT NULL AND NOT contains({raw}, '{others}') OR "
            check += f"{given} IS NULL)"
        elif type_ not in _NUMBERS and not type_.startswith("DECIMAL"):
            raise DataError(f"type is {type_}, must be numbers")
        elif type_ in _FLOATS:
            number = f"CASE WHEN NOT isnan({raw}) THEN {number} END"
        # Transforms are of all digits, and their results alone are rounded to float32.
        finite = f"abs({number}) < {_ROUNDS_TO_INFINITY} IS NOT false"
        return Typed(
            number, f"{check} AND {finite}", "must be a number, finite in float32"
        )

    def _split(self, raw: str, type_: str) -> Typed:
        word = f"lower(({raw})::VARCHAR)"
        cases = " ".join(
            f"WHEN starts_with({word}, '{start}') THEN {number}"
            for start, number in _SPLITS.items()
        )
        value = f"CASE {cases} END::UTINYINT"
        rule = "must be train, validation, test"
        return Typed(value, f"{value} IS NOT NULL", rule)

    def _time(self, raw: str, type_: str) -> Typed:
        """Returns a struct: the kind of time, whole units, of dates microseconds, and
        the number of those that are not whole."""
        if type_ == "VARCHAR":
            value = f"time_of({raw})"
        elif type_ in _FLOATS:
            value = f"time_value('number', NULL, {raw})"
        elif type_ in _INTEGERS or type_ == "UBIGINT":
            value = f"time_value('whole', TRY_CAST({raw} AS BIGINT), NULL)"
        elif type_.startswith(("TIMESTAMP", "DATE")):
            kind = "instant" if "ZONE" in type_ else "date"
            time = f"TRY_CAST({raw} AS TIMESTAMP)" if type_ == "DATE" else raw
            value = f"time_value('{kind}', epoch_us({time}), NULL)"
            if type_ == "TIMESTAMP_NS":
                value = f"time_value('nanoseconds', epoch_ns({raw}), NULL)"
        else:
            raise DataError(f"type is {type_}, must be times")
        rule = "must be a time: a finite number, a whole one from -2^63 to 2^63 - 1, "
        rule += "or a date such as 2024-05-31 12:30:00"
        return Typed(value, f"{value} IS NOT NULL", rule)

    def _category(self, raw: str, type_: str) -> Typed:
        lists = re.fullmatch(r"(.*)\[\d*\]", type_)
        if (self.in_lists or self.separator) and type_ == '"NULL"':
            raw, type_ = "[]::VARCHAR[]", "VARCHAR"
        elif lists:
            type_ = lists[1]
        elif self.separator is not None and type_ == "VARCHAR":
            raw = self._cut(raw)
        elif self.separator is None:
            return self._single(raw, type_)
        else:
            raw = f"[{raw}]"
        if type_ in _AS_TEXT or type_.startswith("ENUM"):
            raw, type_ = f"({raw})::VARCHAR[]", "VARCHAR"
        if type_.endswith("]"):
            raise DataError(f"type is {type_}[], must be lists of integers or text")
        given, events = f"coalesce({raw}, [])", list_of(self.name)
        single = self._single("x", type_)
        follows_rule = not self.text and self.missing is None
        value, check = f"list_transform({events}, lambda x: {single.value})", "true"
        by_rule = type_ == "VARCHAR" and self.is_text is not False and follows_rule
        if by_rule:
            value = by_rule_of(self.name)
        elif single.check != "true":
            bad = f"list_filter({events}, lambda x: NOT ({single.check}))"
            check = f"len({bad}) = 0"
        if not self.events:
            value = f"list_filter({value}, lambda x: x IS NOT NULL)"
        return Typed(value, check, single.rule, given, by_rule=by_rule)

    def _cut(self, raw: str) -> str:
        """Returns SQL of the list in a text."""
        return (
            f"if(trim(coalesce({raw}, ''), {sql.text(BLANKS)}) = '', [], "
            f"string_split({raw}, {sql.text(self.separator or '')}))"
        )

    def _weights(self, raw: str, type_: str) -> Typed:
        if type_ == "VARCHAR" and self.separator:
            raw, type_ = self._cut(raw), "VARCHAR[]"
        if type_ == '"NULL"':
            raw, type_ = "[]::DOUBLE[]", "DOUBLE[]"
        if not type_.endswith("]"):
            raise DataError(f"type is {type_}, must be lists of numbers")
        given, weights = f"coalesce({raw}, [])", list_of(self.name)
        each = self._number("x", type_.partition("[")[0])
        value = f"list_transform({weights}, lambda x: {each.value})"
        good = f"{each.check} AND ({each.value}) IS NOT NULL"
        bad = f"len(list_filter({weights}, lambda x: NOT coalesce({good}, false)))"
        return Typed(value, f"{bad} = 0", "must be numbers", given)

    def _single(self, raw: str, type_: str) -> Typed:
        """Returns what makes one value."""
        rule = "must be whole numbers, as in training"
        if type_ in _AS_TEXT:
            raw, type_ = f"({raw})::VARCHAR", "VARCHAR"
        if type_ == "VARCHAR":
            follows_rule = not self.text and self.missing is None
            if self.is_text is not False and follows_rule:
                return Typed(
                    by_rule_of(self.name), "true", rule, text=raw, by_rule=True
                )
            text = f"canonical({raw})"
            if self.text:
                text = self._present(raw)
            elif self.missing is not None:
                text = f"one_way({self._present(raw)})"
            if self.is_text is not False:
                return Typed(text, "true", rule, text=raw)
            value = f"TRY_CAST({text} AS BIGINT)"
            whole = f"{value} IS NOT NULL AND regexp_full_match({text}, '-?[0-9]+')"
            check = f"({text} IS NULL OR {whole}) AND {self._within(value)}"
            return Typed(value, check, rule)
        if type_ == "UBIGINT" and self.is_text is False:
            rule = "must be below 2^63, as in training; to train on such ids, prepare "
            rule += "the column as uint64 or text"
            value = f"TRY_CAST({raw} AS BIGINT)"
            return Typed(value, f"({raw} IS NULL OR {value} IS NOT NULL)", rule)
        if type_ in _INTEGERS or type_ == "UBIGINT":
            is_text = self.is_text or type_ == "UBIGINT"
            value = f"({raw})::{'VARCHAR' if is_text else 'BIGINT'}"
            return Typed(value, self._within(value), rule)
        if type_ not in _FLOATS:
            raise DataError(
                f"type is {type_}, must be integers or text, or lists of them"
            )
        exact = _FLOATS[type_]
        there = f"(isnan({raw}) OR {raw} IS NULL)"
        check = f"abs({raw}) <= {exact}"
        rule = (
            f"must be integers or text: {type_} has no exact integers beyond {exact:,}"
        )
        if self.is_text:
            value = f"canonical(({raw})::VARCHAR)"
        else:
            check += f" AND {raw} = trunc({raw})"
            value = f"TRY_CAST({raw} AS BIGINT)"
            check += f" AND {self._within(value)}"
        return Typed(
            f"CASE WHEN NOT {there} THEN {value} END", f"({there} OR {check})", rule
        )


@dataclasses.dataclass(frozen=True)
class Typed:
    """SQL of a column's value, and of what is true of a good one; and that in words.

    Attributes:
      given: SQL of the list of raw values, which both call ``list_of``.
      text: SQL of a single text.
      by_rule: whether the value is ``canonical`` of it, or of each of the list, by the
        name ``by_rule_of``.
    """

    value: str
    check: str
    rule: str
    given: str = ""
    text: str = ""
    by_rule: bool = False


def list_of(column: str) -> str:
    """Returns the name of the list of the raw values of a column, in SQL."""
    return sql.name(f"list of {column}")


def by_rule_of(column: str) -> str:
    """Returns the name of what ``canonical`` makes of a column, in SQL."""
    return sql.name(f"{column} by the rule")


def split_named(name: str) -> int | None:
    """Returns the number of the split that a name begins with, if there is one."""
    numbers = (n for start, n in _SPLITS.items() if name.lower().startswith(start))
    return next(numbers, None)
