"""Numbers values.

Id 0 stands for a missing value, and id 1 for a value that is too rare in the training
samples; then come the values, the most frequent first. A hashed table has no
vocabulary: its values share the rows from 1 on.
"""

from __future__ import annotations

import pyarrow as pa

MISSING_ID = 0
RARE_ID = 1
FIRST_ID = 2
VOCABULARY = "vocabulary"
"""Name of the folder of the vocabularies."""


def vocabulary_file(table: str) -> str:
    """Returns the path of a table's vocabulary in the folder."""
    return f"{VOCABULARY}/{table}.arrow"


def is_text(kind: pa.DataType) -> bool:
    """Says whether values, alone, in lists or in dictionaries, are text."""
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind):
        return is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
