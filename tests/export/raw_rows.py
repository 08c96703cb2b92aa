"""Batches in place of raw rows, for scorers of data that have none."""

from __future__ import annotations


class BatchesAsRows:
    """A ``RowEncoder`` that is given batches."""

    labels = ()

    def __init__(self, folder): ...

    def batches(self, rows):
        yield rows, True
