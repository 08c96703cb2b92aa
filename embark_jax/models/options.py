"""Types of the hyperparameters of models, with the rules that configs check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

Width = PositiveInt
Widths = tuple[PositiveInt, ...]
"""Widths of the layers of an MLP, in their order."""
Layers = Annotated[int, Field(ge=1, le=1000)]
"""A number of equal layers or experts: each is made, even to count it, so that a slip
of the pen would not end."""
Features = tuple[str, ...]
"""Names of features."""
History = Annotated[
    Mapping[str, str], Field(min_length=1, examples=[{"past_items": "item"}])
]
"""For each sequence feature the feature whose past values it holds."""
ComputeDtype = Annotated[
    Literal["float32", "bfloat16"],
    Field(
        description="Type of the operands of matrix products, and of wide arrays "
        "between them; parameters and sums are float32."
    ),
]
Dropout = Annotated[
    float,
    Field(ge=0, lt=1, description="Share of hidden values that training sets to zero."),
]
BatchNorm = Annotated[
    bool,
    Field(description="Whether an MLP's hidden values are normalized before its ReLU."),
]
Float8 = Annotated[
    bool,
    Field(
        description="Whether operands of the widest products have 8 bits, scaled by "
        "the largest value of each."
    ),
]
