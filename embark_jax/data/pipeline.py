"""Makes the next batches while the devices work on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(
    make_batch: Callable[[int], T], start: int, stop: int, depth: int = 2
) -> Iterator[T]:
    """Yields ``make_batch(step)`` for the steps ``start .. stop - 1``, in order.

    A background thread stays up to ``depth`` batches ahead of the consumer. An
    exception of ``make_batch`` is raised where its batch would have come. Closing the
    generator waits for the batch in the making and ends the thread.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    ahead: deque[Future[T]] = deque()
    try:
        for step in range(start, stop):
            ahead.append(pool.submit(make_batch, step))
            if len(ahead) > depth:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
