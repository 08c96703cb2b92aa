"""embark bench kernels: what it reports; nothing here asserts a time."""

import json

from embark_kernels import SHAPES

from tests.runs import assert_refused, done, embark

SMALL = ("--table-mib", "1", "--ids", "500", "--rounds", "1")


def test_every_operation_of_a_shape():
    outcome = done("bench", "kernels", "t510 128", *SMALL, "--json")
    rows = json.loads(outcome.out)
    assert [row["op"] for row in rows] == ["unique", "pooled_lookup", "update"]
    for row in rows:
        assert row["shape"] == "t510 128"
        assert row["median_ms"] > 0
        assert row["rows"] == 2**20 // (128 * 4)
        # One sample has 470 + 20 * 10 + 20 * 100 ids, more than were asked for.
        assert (row["batch"], row["ids"]) == (1, 2670)
    lookup = rows[1]
    moved = 4 * (2670 * 129 + 510 * 128)
    assert abs(lookup["bytes_per_s"] * lookup["median_ms"] / 1e3 / moved - 1) < 1e-9


def test_shapes_are_cut_and_not_grown():
    shape = SHAPES["t7 128"]
    assert shape.within(2**62, 2**62) == shape
    assert shape.within(128 * 4 * 10, 100) == type(shape)(10, 128, 4, (20, 1, 1))


def test_mistakes_are_named():
    outcome = embark("bench", "kernels", "t7 129")
    assert_refused(outcome, "shape is 't7 129'; did you mean t7 128?")
