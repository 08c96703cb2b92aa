"""Makes the next batches while the devices work on the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def prefetch(
    function: Callable[[S], T], items: Iterable[S], depth: int = 2, *, workers: int = 1
) -> Generator[T]:
    """Yields ``function(item)`` for each item, such as a step, in order.

    ``workers`` threads stay up to ``depth`` items ahead of the consumer, and take no
    further item. An exception of ``function`` is raised where its result would have
    come, and so is one of ``items``. Closing the generator waits for unfinished calls
    and ends the threads.
    """
    source = iter(items)
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="prefetch")
    ahead: deque[Future[T]] = deque()
    try:
        while True:
            try:
                item = next(source)
            except StopIteration:
                break
            except Exception as error:
                ahead.append(failed := Future())
                failed.set_exception(error)
                break
            ahead.append(pool.submit(function, item))
            if len(ahead) > depth:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


Progress = Callable[[str, int, int], None]
"""Is told the stage of some work, how far it is, and where it ends."""


def silent(stage: str, done: int, total: int) -> None:
    """Shows no progress."""
