"""Compiled for H100s, the step moves what the cost model says, byte by byte.

There XLA joins all-reduces that are ready at the same time into one array, so that only
their sum can be compared.
"""

from collections import Counter

import pytest

from tests.compiled import h100_mesh
from tests.train.accounting import compile_and_predict, request


def total_bytes(collectives: Counter) -> Counter:
    """Bytes of each kind of collective."""
    total = Counter()
    for (kind, size), count in collectives.items():
        total[kind] += size * count
    return total


# On all meshes, with every optimizer.
@pytest.mark.parametrize("seed", range(6))
def test_the_step_for_h100s_moves_what_the_cost_model_says(seed):
    plan, *_ = request(seed)
    mesh = h100_mesh(plan.nodes, plan.gpus_per_node)
    found, expected = compile_and_predict(seed, mesh)
    assert total_bytes(found) == total_bytes(expected)
