import threading
import time

import pytest

from embark_jax.data import prefetch


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_stays_depth_items_ahead(depth):
    started = []
    items = prefetch(lambda step: started.append(step) or step, range(20), depth)
    for expected in range(20):
        assert next(items) == expected
        until = min(expected + depth, 19)
        deadline = time.monotonic() + 10
        while started[-1] < until and time.monotonic() < deadline:
            time.sleep(0.001)
        assert started == list(range(until + 1))


def test_close_ends_the_thread_and_makes_no_more():
    made = []

    def make(step):
        made.append(threading.current_thread())
        return step

    items = prefetch(make, range(10**9))
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert not made[0].is_alive()
    assert threading.current_thread() not in made
    assert len(made) <= 4


def test_an_exception_of_the_items_comes_after_the_results_before_it():
    def items():
        yield from range(3)
        raise RuntimeError("no item 3")

    results = prefetch(str, prefetch(int, items(), 1), 5)
    assert [next(results) for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(RuntimeError, match="no item 3"):
        next(results)
