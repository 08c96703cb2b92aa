"""Supervises the process that trains: starts it, ends it, starts it again.

A process that waits in a collective cannot look after itself, so each has a supervisor:
a small parent process that uses no device and outlives it. As soon as one process
fails, all supervisors end theirs and say why, so nothing waits for a lost peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from embark_jax.launch.messages import (
    LINE_BYTES,
    REASON_BYTES,
    Done,
    End,
    Failed,
    Failure,
    Join,
    Message,
    Peer,
    RefusedError,
    Start,
)
from embark_jax.launch.process_group import ProcessGroup
from embark_jax.launch.rendezvous import (
    GREETING_S,
    JOIN_TIMEOUT_S,
    RETURN_TIMEOUT_S,
    Rendezvous,
)
from embark_jax.launch.token import VARIABLE as TOKEN_VARIABLE
from embark_jax.launch.worker import ENVIRONMENT_VARIABLE, WorkerOptions

GOODBYE_S = 5
"""Time for all members to hear how the run ended."""
RETRY_S = 0.2
"""Time between attempts to connect to a coordinator."""


class Supervisor:
    """Runs a command as one process of a group, to the end of the run.

    Args:
      group: of the run.
      run: name of the run, the same for all its processes.
      token: their secret, without which nobody joins them.
      command: starts the process that trains, which is a ``launch.Worker``.
      max_restarts: how often all processes start again after one fails.
      say: shows a message to the user.
    """

    def __init__(
        self,
        group: ProcessGroup,
        run: str,
        token: bytes,
        command: Sequence[str],
        max_restarts: int,
        say: Callable[[str], None],
    ):
        self._group = group
        self._run = run
        self._token = token
        self._command = command
        self._max_restarts = max_restarts
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._interrupted = False

    def supervise(self) -> int:
        """Returns the exit status: 0 if all processes of the run ended well.

        Raises:
          OSError: if the coordinator's port is taken.
        """
        try:
            return asyncio.run(self._supervise())
        except asyncio.CancelledError:  # a signal came before the process started
            return 128 + (signal.SIGINT if self._interrupted else signal.SIGTERM)

    async def _supervise(self) -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._pass_on_sigterm, task)
        loop.add_signal_handler(signal.SIGINT, self._interrupt, task)
        if self._group.process_id != 0:
            return await self._attempts()
        rendezvous = Rendezvous(
            self._run, self._token, self._group.processes, self._max_restarts
        )
        server = await rendezvous.listen(self._group.host, self._group.port)
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(rendezvous.serve())
                status = await self._attempts()
                await asyncio.wait({serving}, timeout=GOODBYE_S)
                serving.cancel()
            return status
        finally:
            server.close()

    async def _attempts(self) -> int:
        for attempt in range(self._max_restarts + 1):
            outcome = await self._attempt(
                RETURN_TIMEOUT_S if attempt else JOIN_TIMEOUT_S
            )
            if outcome.reason is None:
                return 0
            if not outcome.restart or attempt == self._max_restarts:
                self._say(f"ended: {outcome.reason}")
                return 1
            self._say(
                f"{outcome.reason}; starting again from the last checkpoint "
                f"({attempt + 1} of {self._max_restarts})"
            )
        raise AssertionError("the last attempt is not followed by another")

    async def _attempt(self, timeout_s: float) -> End:
        group = self._group
        where = f"{group.host}:{group.port}"
        peer = await _reach(group, self._token, timeout_s)
        if peer is None:
            return End(
                reason=f"no coordinator of a run answered at {where} within "
                f"{timeout_s} s"
            )
        async with contextlib.aclosing(peer):
            peer.send(
                Join(
                    run=self._run,
                    processes=group.processes,
                    process_id=group.process_id,
                )
            )
            try:
                message = await peer.receive()
                if isinstance(message, Start):
                    message = await self._work(peer, message.attempt, message.port)
            except RefusedError:
                return End(
                    reason=f"the coordinator at {where} has another token: all "
                    f"processes must have one --workdir that they share, or one "
                    f"{TOKEN_VARIABLE}"
                )
        if isinstance(message, End):
            return message
        return End(reason=f"process 0 is lost: {where} is gone", restart=True)

    async def _work(self, peer: Peer, attempt: int, port: int) -> Message | None:
        """Runs the process; returns how the rendezvous says that the attempt ended."""
        verdict = asyncio.create_task(peer.receive())
        async with self._worker(attempt, port) as link:
            ended = asyncio.create_task(self._failure(link))
            await asyncio.wait({verdict, ended}, return_when="FIRST_COMPLETED")
            if ended.done():
                failure = ended.result()
                peer.send(Done() if failure is None else Failed(failure=failure))
            message = await verdict
            ended.cancel()
        return message

    @contextlib.asynccontextmanager
    async def _worker(self, attempt: int, port: int) -> AsyncIterator[socket.socket]:
        """Starts the process, and kills it at the end."""
        group = self._group
        link, theirs = socket.socketpair()
        with link, theirs:
            environment = dict(os.environ)
            environment.pop(TOKEN_VARIABLE, None)
            options = WorkerOptions(
                coordinator=f"[{group.host}]:{port}"
                if ":" in group.host
                else f"{group.host}:{port}",
                processes=group.processes,
                process_id=group.process_id,
                resume=attempt > 0,
                link=theirs.fileno(),
            )
            # The process inherits the mask. It unblocks SIGTERM when it can handle it,
            # and never Ctrl-C, which a terminal sends to both, and which we handle.
            held_back = {signal.SIGTERM, signal.SIGINT}
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env={**environment, ENVIRONMENT_VARIABLE: options.to_json()},
                    pass_fds=[options.link],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            try:
                yield link
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                self._process = None

    async def _failure(self, link: socket.socket) -> Failure | None:
        """Waits for the end of the process; returns why it failed, if it did."""
        assert self._process is not None
        status = await self._process.wait()
        report = link.recv(REASON_BYTES, socket.MSG_DONTWAIT)
        if report:
            with contextlib.suppress(ValueError):  # it was killed while it wrote
                return Failure(**json.loads(report))
        if status == 0:
            return None
        name = f"process {self._group.process_id}"
        if status > 0:
            return Failure(f"{name} ended with exit status {status}")
        # JAX aborts a process whose coordinator is gone.
        killer = signal.Signals(-status)
        return Failure(
            f"{name} was killed by {killer.name}", symptom=killer == signal.SIGABRT
        )

    def _interrupt(self, task: asyncio.Task) -> None:
        """Ends the run with a checkpoint at Ctrl-C, and at once at the second one."""
        if self._interrupted:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            os._exit(128 + signal.SIGINT)
        self._interrupted = True
        print(
            "Ctrl-C: all processes end after the same step, with a checkpoint; Ctrl-C "
            "again ends this one at once",
            file=sys.stderr,
            flush=True,
        )
        self._pass_on_sigterm(task)

    def _pass_on_sigterm(self, task: asyncio.Task) -> None:
        if self._process is None:
            task.cancel()
        else:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)


async def _reach(group: ProcessGroup, token: bytes, timeout_s: float) -> Peer | None:
    """Connects to the coordinator, which may not be there yet."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(OSError):
                    if (peer := await _greeted(group, token)) is not None:
                        return peer
                await asyncio.sleep(RETRY_S)
    return None


async def _greeted(group: ProcessGroup, token: bytes) -> Peer | None:
    """Returns a connection whose other end is a rendezvous, as far as it says."""
    connection = await asyncio.open_connection(group.host, group.port, limit=LINE_BYTES)
    peer = Peer(*connection, token, "member")
    greeted = False
    try:
        async with asyncio.timeout(GREETING_S):
            greeted = await peer.greet()
    finally:
        if not greeted:
            peer.abort()
    return peer if greeted else None
