"""Rows by frequency, for data of one's own."""

import numpy as np
import pytest

import embark_jax as ej


def test_the_most_frequent_ids_have_the_first_rows():
    rows_of = ej.by_frequency([[3, 3, -1], [1, 4, 3], [1, 2, -1]], 6)
    assert rows_of.tolist() == [4, 1, 2, 0, 3, 5]
    assert ej.by_frequency(np.zeros(0, int), 2).tolist() == [0, 1]
    with pytest.raises(ValueError, match="ids are from -2 to 3, must be from 0 to 3"):
        ej.by_frequency([-2, 3], 4)
    with pytest.raises(ValueError, match="ids are a masked array, must be whole"):
        ej.by_frequency(np.ma.array([2, 3], mask=[1, 0]), 4)
