"""Says which values of a user's own files are the same: the one rule for preparation
and for raw rows that are scored later, whatever they are in.

A value is missing, a text or a whole number:

- Blanks around a text do not count.
- Null, NaN and the texts in MISSING are missing. In a list they are left out.
- A Boolean is the text ``true`` or ``false``, and so are True, TRUE, False and FALSE.
- A number is the text of its decimal digits, without plus, leading zeros, or zeros that
  end its fraction: 7, 007, +7 and 7.0 are ``7``, and 2.50 is ``2.5``.
- A float that is no exact whole number any more is refused, since ids are integers.

A column of integers has whole numbers, unless training had text. Integers of 64 bits
without a sign, up to 2^64 - 1, are texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embark_jax._base.config import Config
from embark_jax._base.errors import DataError

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

WHOLE_RANGE = range(-(2**63), 2**63)
_DECIMAL_FORMS = (
    (r"^([+-]?)\.(\d+)$", r"\10.\2"),  # the groups of RE2 have one digit
    (r"^(?:\+|(-))?0*(\d+)(?:\.0*)?$", r"\1\2"),
    (r"^(?:\+|(-))?0*(\d+)\.(\d*[1-9])0*$", r"\1\2.\3"),
    (r"^-0$", "0"),
)
"""Patterns of numbers in text, and what they become, one after the other."""


class ValueRule(Config):
    """The rule, as the manifest keeps it.

    Attributes:
      missing: texts that stand for a missing value.
      true, false: texts that stand for ``true`` and ``false``.
    """

    missing: tuple[str, ...] = MISSING
    true: tuple[str, ...] = ("true", "True", "TRUE")
    false: tuple[str, ...] = ("false", "False", "FALSE")

    def numbers(self, column: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Returns float64 numbers, with nulls for missing ones.

        Raises:
          pa.ArrowInvalid, pa.ArrowNotImplementedError: if a value is no number.
        """
        values = _plain(column)
        if pa.types.is_string(values.type):
            values = _by_unique_value(values, self._without_missing)
        nearest = pa.types.is_integer(values.type)  # beyond 2^53
        values = values.cast(pa.float64(), safe=not nearest)
        is_nan = pc.call_function("is_nan", [values])
        return _nulled(values, is_nan)

    def categories(
        self,
        column: pa.ChunkedArray | pa.Array,
        where: str,
        is_text: bool | None = None,
        separator: str | None = None,
    ) -> pa.Array:
        """Returns the values, alone or in lists, as texts or int64.

        Args:
          column: the column as it is in the raw rows.
          where: file and column, for messages.
          is_text: whether training had texts; None takes what the column is.
          separator: the separator between the values of a list in text, if any.

        Raises:
          DataError: if a value is no text and no whole number.
        """
        values = _plain(column)
        if separator is not None and not pa.types.is_list(values.type):
            if is_text and not pa.types.is_string(values.type):
                values = self._singles(values, where, is_text)  # lists of one number
            if pa.types.is_string(values.type):
                options = pc.SplitPatternOptions(separator)
                texts = values.fill_null("")
                values = pc.call_function("split_pattern", [texts], options)
        if not pa.types.is_list(values.type):
            return self._singles(values, where, is_text)
        singles = self._singles(values.flatten(), where, is_text)
        return without_nulls(singles, values.value_lengths().fill_null(0).to_numpy())

    def _singles(self, values: pa.Array, where: str, is_text: bool | None) -> pa.Array:
        kind = values.type
        # Of 64 bits without a sign, such as hashes: int64 does not hold them.
        is_wide = pa.types.is_uint64(kind) and is_text is not False
        if pa.types.is_boolean(kind) or pa.types.is_null(kind) or is_wide:
            values = values.cast(pa.string())
        elif pa.types.is_floating(kind):
            values = _of_floats(values, where, is_text)
        if pa.types.is_integer(values.type):
            return values.cast(pa.string()) if is_text else _whole(values, where)
        if not pa.types.is_string(values.type):
            raise DataError(
                f"{where}: type is {kind}, must be integers or text, or lists of them"
            )
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:  # such as half of a surrogate pair
            raise DataError(f"{where}: is no UTF-8 text ({error})") from None
        values = _by_unique_value(values, self._canonical)
        return values if is_text is not False else _read_whole(values, where)

    def _canonical(self, texts: pa.Array) -> pa.Array:
        """Returns the one way to write each text, null for missing ones."""
        texts = self._without_missing(texts)
        for meaning, forms in (("true", self.true), ("false", self.false)):
            texts = pc.call_function(
                "if_else", [_is_in(texts, forms), pa.scalar(meaning), texts]
            )
        for pattern, replacement in _DECIMAL_FORMS:
            options = pc.ReplaceSubstringOptions(pattern, replacement)
            texts = pc.call_function("replace_substring_regex", [texts], options)
        return texts

    def _without_missing(self, texts: pa.Array) -> pa.Array:
        trimmed = pc.call_function("utf8_trim_whitespace", [texts])
        return _nulled(trimmed, _is_in(trimmed, self.missing))


def without_nulls(values: pa.Array, lengths: np.ndarray) -> pa.ListArray:
    """Returns lists without missing values, from the values of all lists and the
    ``[lists]`` numbers of values of each."""
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    ends = np.append(0, np.cumsum(is_valid))[np.append(0, np.cumsum(lengths))]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values.drop_null())


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns one array, with texts of any kind as strings."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    is_list = pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list or pa.types.is_list(kind):
        value_kind = kind.value_type
        if pa.types.is_dictionary(value_kind):
            value_kind = value_kind.value_type
        return column.cast(pa.list_(_as_string(value_kind)))
    return column.cast(_as_string(column.type))


def _as_string(kind: pa.DataType) -> pa.DataType:
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if is_text else kind


def _by_unique_value(
    texts: pa.Array, function: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Applies a function to each text once."""
    encoded = texts.dictionary_encode()
    return function(encoded.dictionary).take(encoded.indices)


def _is_in(texts: pa.Array, forms: tuple[str, ...]) -> pa.Array:
    options = pc.SetLookupOptions(pa.array(forms, pa.string()))
    return pc.call_function("is_in", [texts], options)


def _nulled(values: pa.Array, missing: pa.Array) -> pa.Array:
    nothing = pa.scalar(None, values.type)
    return pc.call_function("if_else", [missing.fill_null(False), nothing, values])


def _of_floats(values: pa.Array, where: str, is_text: bool | None) -> pa.Array:
    """Returns floats as int64 if all are whole numbers, otherwise as texts if training
    had texts."""
    values = _nulled(values, pc.call_function("is_nan", [values]))
    present = values.drop_null().to_numpy()
    exact = 2 ** (np.finfo(present.dtype).nmant + 1)
    if len(bad := present[~(np.abs(present) <= exact)]):
        raise DataError(
            f"{where}: value is {_shown(bad[0])} in {values.type}, which has no exact "
            f"integers beyond {exact:,}; give integers or text"
        )
    if (present == np.trunc(present)).all():
        return values.cast(pa.int64())
    if not is_text:
        example = _shown(present[present != np.trunc(present)][0])
        raise DataError(
            f"{where}: type is {values.type}, must be integers or text, or lists of "
            f"them; a value is {example}"
        )
    encoded = values.dictionary_encode()
    texts = [
        np.format_float_positional(number, trim="-")
        for number in encoded.dictionary.to_numpy()
    ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _whole(values: pa.Array, where: str) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        largest = pc.call_function("max", [values]).as_py()
        raise DataError(
            f"{where}: value is {largest}, must be below 2^63, as in training; to "
            "train on such ids, prepare the column as uint64 or text"
        ) from None


def _read_whole(texts: pa.Array, where: str) -> pa.Array:
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        bad = next(text for text in texts.to_pylist() if not _is_whole(text))
        raise DataError(
            f"{where}: value is {bad!r:.80}, must be whole numbers, as in training"
        ) from None


def _is_whole(text: str | None) -> bool:
    try:
        return text is None or int(text) in WHOLE_RANGE
    except ValueError:
        return False


def _shown(number: Any) -> str:
    return repr(float(number))
