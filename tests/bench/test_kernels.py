"""embark bench kernels: what it reports; nothing here asserts a time."""

import json

import pytest
from embark_kernels import SHAPES, _implementation, check, choose

from tests.runs import assert_refused, done, embark

SMALL = ("--table-mib", "1", "--ids", "500", "--rounds", "1")


def test_every_operation_of_a_shape():
    outcome = done("bench", "kernels", "t510 128", *SMALL, "--json")
    rows = json.loads(outcome.out)
    assert [row["op"] for row in rows] == [
        "unique",
        "pooled_lookup",
        "update_from_bags",
    ]
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
    outcome = embark("bench", "kernels", "t7 128", *SMALL, "--tune")
    assert_refused(outcome, "--tune: mosaic_gpu needs a GPU")


def test_a_check_needs_a_gpu():
    outcome = embark("bench", "kernels", "--check")
    assert_refused(outcome, "--check: mosaic_gpu needs a GPU; JAX runs on cpu here")
    for other in ("--tune", "t7 128"):
        outcome = embark("bench", "kernels", "--check", other)
        assert outcome.code == 2
        assert "--check goes with neither shapes nor --tune" in outcome.err


@pytest.mark.parametrize("failed", [False, True])
def test_what_a_check_shows(monkeypatch, tmp_path, failed):
    monkeypatch.setenv("EMBARK_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(_implementation, "_why_not_mosaic_gpu", lambda: "")
    case = {"op": "sum_bags", "width": 16, "dtype": "float32", "about": "weighted"}
    row = {**case, "error": 1e-7, "limit": 2e-7, "problem": ""}
    ended = {**case, "error": None, "limit": None, "problem": "stopped after 9 s"}
    rows = {"integers": [], "width16": [row, *[ended] * failed]}
    monkeypatch.setattr(check, "GROUPS", rows)
    monkeypatch.setattr(check, "run_group", lambda group, *_: rows[group])
    outcome = embark("bench", "kernels", "--check")
    assert "1.0e-07" in outcome.out
    if failed:
        assert outcome.code == 1
        assert "sum_bags 16 float32 weighted: stopped after 9 s" in outcome.out
        assert "1 of 2 cases passed" in outcome.out
        assert "auto takes xla: the GPU kernels failed their check" in outcome.out
    else:
        assert outcome.code == 0
        assert "embedding.kernels=auto takes mosaic_gpu" in outcome.out
        assert choose(None) == "mosaic_gpu"
