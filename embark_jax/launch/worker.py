"""The process that trains, a child of its supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from embark_jax.launch.messages import REASON_CHARACTERS, Failure

ENVIRONMENT_VARIABLE = "EMBARK_WORKER"


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """What a supervisor passes to the process that it starts.

    Attributes:
      coordinator: HOST:PORT of JAX's own coordinator.
      processes: number of processes of the run.
      process_id: number of this process.
      resume: whether to resume from the last checkpoint.
      link: file descriptor of a socket to the supervisor.
    """

    coordinator: str
    processes: int
    process_id: int
    resume: bool
    link: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Worker:
    """This process, if a supervisor started it. It ends when its supervisor does."""

    def __init__(self, options: WorkerOptions):
        self.options = options
        self._link = socket.socket(fileno=options.link)
        threading.Thread(target=self._end_with_supervisor, daemon=True).start()

    @classmethod
    def of_this_process(cls) -> Worker | None:
        """Returns this process, or None if no supervisor started it."""
        options = os.environ.pop(ENVIRONMENT_VARIABLE, None)
        return None if options is None else cls(WorkerOptions(**json.loads(options)))

    def _end_with_supervisor(self) -> None:
        self._link.recv(
            1
        )  # the supervisor sends nothing, so this returns when it is gone
        os._exit(1)

    @contextlib.contextmanager
    def reporting(
        self, show: Callable[[Exception], None], final: tuple[type[Exception], ...]
    ) -> Iterator[None]:
        """Reports an exception to the supervisor, and ends the process at once.

        An orderly exit would wait for other processes, which may wait for this one.

        Args:
          show: shows an exception to the user.
          final: exceptions that would be raised again after a restart.
        """
        try:
            yield
        except Exception as error:
            show(error)
            symptom = _in_a_collective(error)
            reason = f"process {self.options.process_id}: {type(error).__name__}: "
            reason = (reason + str(error))[:REASON_CHARACTERS]
            reason = reason.encode("utf-8", "replace").decode()  # names of files
            failure = Failure(reason, symptom, isinstance(error, final) and not symptom)
            self._link.sendall(json.dumps(dataclasses.asdict(failure)).encode())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)


def _in_a_collective(error: BaseException | None) -> bool:
    """Says whether an error of JAX's runtime caused it, as when a peer is gone."""
    import jax

    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False
