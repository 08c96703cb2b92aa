"""Makes the next batches while the devices work on the current one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def prefetch(
    make_batch: Callable[[S], T], items: Iterable[S], depth: int = 2
) -> Iterator[T]:
    """Yields ``make_batch(item)`` for the items, such as steps, in order.

    A background thread stays up to ``depth`` batches ahead of the consumer; see
    ``in_order``.
    """
    return in_order(make_batch, items, workers=1, depth=depth)


def in_order(
    function: Callable[[S], T], items: Iterable[S], *, workers: int, depth: int
) -> Generator[T]:
    """Yields ``function(item)`` for each item, in order.

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


def cores() -> int:
    """Returns the number of cores of this machine."""
    return os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Workers:
    """Threads for work in stages.

    Attributes:
      count: number of items worked on at once; one per core by default.
      progress: called with the stage, how far it is, and where it ends.
    """

    count: int = dataclasses.field(default_factory=cores)
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None

    def map(
        self, stage: str, function: Callable[[S], T], items: Sequence[S]
    ) -> Iterator[T]:
        """Yields ``function(item)`` for each item, in order."""
        made = in_order(function, items, workers=self.count, depth=self.count)
        with contextlib.closing(made) as results:
            for done, result in enumerate(results, 1):
                self.progress(stage, done, len(items))
                yield result
