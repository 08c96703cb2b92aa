"""Ends a run early and orderly: at Ctrl-C, or at SIGTERM, before its machine is
taken."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import jax
from jax.experimental import multihost_utils

T = TypeVar("T")


class StoppedError(Exception):
    """A run ends early because it was asked to."""


class Stop:
    """Whether a run is asked to end early."""

    def __init__(self):
        self._request = threading.Event()
        self._several = jax.process_count() > 1

    def ask(self) -> bool:
        """Asks this process to stop; returns False if it was asked before."""
        news = not self._request.is_set()
        self._request.set()
        return news

    @property
    def requested(self) -> bool:
        """Whether a run of one process is asked to end, even if it has just ended."""
        return self._request.is_set()

    def before(self, step: int) -> bool:
        """Returns whether to stop before this step. Call it for each step: all
        processes stop at the same one, whichever got the signal."""
        if self._several:  # JAX handles the signal since its initialization
            return multihost_utils.reached_preemption_sync_point(step)
        return self.requested

    def during(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches of work that may stay unfinished, such as an evaluation.

        Raises:
          StoppedError: once a run of one process is asked to end.
        """
        for batch in batches:
            if self.requested:
                raise StoppedError
            yield batch


@contextlib.contextmanager
def stopping(say: Callable[[str], None]) -> Iterator[Stop]:
    """Ends a run orderly at SIGTERM and Ctrl-C; a second Ctrl-C ends it at once.

    Python runs signal handlers between two of its own instructions, which may be
    minutes apart while XLA compiles. So a separate thread receives the signals. Where
    several processes train, JAX handles SIGTERM, and has all of them stop at the same
    step; Ctrl-C becomes one. In another thread than the main one, such as that of a
    worker of Ray, a run has no signals: Python gives them to the main thread alone.

    Args:
      say: shows a message to the user; another thread calls it.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    several = jax.process_count() > 1
    received, sent = socket.socketpair()
    sent.setblocking(False)  # as the signal module requires

    def watch() -> None:
        interrupts = 0
        while number := received.recv(1):
            name = signal.Signals(number[0]).name
            if name == "SIGINT":
                name = "Ctrl-C"
                interrupts += 1
            if interrupts > 1:
                say("ended at once")
                os._exit(128 + signal.SIGINT)
            if several:
                os.kill(os.getpid(), signal.SIGTERM)
            if several or stop.ask() or interrupts:
                again = "; Ctrl-C again ends it at once" if interrupts else ""
                say(f"{name}: the run ends after this step, with a checkpoint{again}")

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in [signal.SIGINT, *([] if several else [signal.SIGTERM])]
    }
    descriptor = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        sent.close()  # this ends the thread
        watcher.join()
        received.close()
