"""What is sent to be pooled arrives as it was, in as many bytes as planned."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from embark_jax.embedding.wire import PooledIds, decode_ids, encode_ids
from embark_jax.plans import traffic
from embark_jax.plans.wire import sum_blocks

DEVICES = 3


@pytest.mark.parametrize(
    ("weighted", "by_key"), [(False, False), (True, False), (False, True)]
)
@hypothesis.given(
    batch=st.sampled_from([1, 2, 255, 256, 257, 700]),
    sums=st.integers(1, 3),
    capacity=st.sampled_from([1, 5, 300]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=25)
def test_ids_arrive_as_they_were(weighted, by_key, batch, sums, capacity, seed):
    rng = np.random.default_rng(seed)
    bags = batch * sums
    # Few bags or all, so that some blocks are empty and some lines too.
    used = rng.choice(bags, rng.integers(1, bags + 1))
    bag = np.full((DEVICES, capacity), bags, np.int32)
    for line, filled in zip(bag, rng.integers(0, capacity + 1, DEVICES), strict=True):
        line[:filled] = np.sort(rng.choice(used, filled))
    slot = rng.integers(0, 2**31, bag.shape, np.int32)
    if by_key:
        slot = rng.integers(0, 2**32, (*bag.shape, 2), np.uint32)
    weight = rng.normal(size=bag.shape).astype(np.float32) if weighted else None
    sent = PooledIds(slot, bag, weight)

    blocks = sums * sum_blocks(batch)
    coded = jax.jit(encode_ids, static_argnums=(1, 2))(sent, bags, blocks)
    planned = capacity * traffic.pooled_id_buffer_bytes(weighted, DEVICES, by_key)
    planned += sums * traffic.block_buffer_bytes(batch, DEVICES)
    assert coded.nbytes == planned
    decode = jax.jit(decode_ids, static_argnums=(1, 2, 3, 4))
    found = decode(coded, bags, blocks, weighted, by_key)
    jax.tree.map(np.testing.assert_array_equal, found, sent)
