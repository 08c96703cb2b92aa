"""Named shapes of published models."""

from embark_kernels import SHAPES


def test_shapes_are_cut_and_not_grown():
    shape = SHAPES["t7 128"]
    assert shape.within(2**62, 2**62) == shape
    assert shape.within(128 * 4 * 10, 100) == type(shape)(10, 128, 4, (20, 1, 1))
