"""Matrix products of dense layers: what models multiply, and planners price."""

from typing import NamedTuple


class Product(NamedTuple):
    """A matrix product: ``[times × batch, inputs]`` by ``[inputs, outputs]``.

    Attributes:
      inputs, outputs: widths of both sides.
      times: rows of a sample, such as its events.
      weighted: whether the right side is parameters; scores of attention have none.
    """

    inputs: float
    outputs: float
    times: float = 1.0
    weighted: bool = True
