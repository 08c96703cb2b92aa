"""The supervisors of a run meet here, and decide together how it goes on.

The supervisor of process 0 serves the rendezvous. An attempt begins once all have
joined. It ends when all are done, or when one reports a failure or is gone: then all
hear of the same first failure, and whether to join again.

    member → rendezvous   join, then done or failed
    rendezvous → member   start, then end or failed
"""

from __future__ import annotations

import asyncio
import dataclasses

from embark_jax.launch.messages import Failure, Peer
from embark_jax.launch.process_group import free_port

JOIN_TIMEOUT_S = 300
"""Time for all to join the first time: schedulers may start them minutes apart."""
RETURN_TIMEOUT_S = 15
"""Time for all to join again after a failure; a lost one as a new process."""
SETTLE_S = 2
"""Time to wait for the cause of a failure that may be a symptom."""


@dataclasses.dataclass(frozen=True)
class _Event:
    """A member joined or is done, or it failed or is lost."""

    process_id: int
    failure: Failure | None = None


class Rendezvous:
    """The meeting point of a run's supervisors.

    Args:
      run: name of the run; members of other runs are refused.
      processes: number of processes.
      max_restarts: number of attempts after the first.
    """

    def __init__(self, run: str, processes: int, max_restarts: int):
        self._run = run
        self._processes = processes
        self._max_restarts = max_restarts
        self._new_attempt()

    def _new_attempt(self) -> None:
        # Messages from connections of the last attempt no longer count.
        self._members: dict[int, Peer] = {}
        self._events: asyncio.Queue[_Event] = asyncio.Queue()

    async def listen(self, port: int) -> asyncio.Server:
        """Lets members in; raises ``OSError`` if the port is taken."""
        return await asyncio.start_server(self._welcome, port=port)

    async def serve(self) -> None:
        """Serves all attempts, to the end of the run."""
        for attempt in range(self._max_restarts + 1):
            failure = await self._attempt(attempt)
            peers = list(self._members.values())
            restart = False
            if failure is None:
                self._tell("end")
            else:
                restart = attempt < self._max_restarts and not failure.final
                self._tell("failed", reason=failure.reason, restart=restart)
            self._new_attempt()
            await asyncio.gather(*(peer.aclose() for peer in peers))
            if not restart:
                return

    async def _attempt(self, attempt: int) -> Failure | None:
        """Returns why it failed, or None once all are done."""
        timeout_s = RETURN_TIMEOUT_S if attempt else JOIN_TIMEOUT_S
        joined: set[int] = set()
        try:
            async with asyncio.timeout(timeout_s):
                while len(joined) < self._processes:
                    event = await self._events.get()
                    if event.failure is None:
                        joined.add(event.process_id)
                    else:
                        joined.discard(event.process_id)
        except TimeoutError:
            missing = sorted({*range(self._processes)} - joined)
            reason = (
                f"process {', '.join(map(str, missing))} did not come within "
                f"{timeout_s} s"
            )
            return Failure(reason, final=True)
        # Another port each time, since JAX's last coordinator may linger.
        self._tell("start", attempt=attempt, port=free_port())
        while joined:
            event = await self._events.get()
            if event.failure is not None:
                return await self._cause(event.failure)
            joined.discard(event.process_id)
        return None

    async def _cause(self, first: Failure) -> Failure:
        """The first failure, or its cause, if a member reports it soon."""
        cause = first
        try:
            async with asyncio.timeout(SETTLE_S):
                while cause.symptom:
                    event = await self._events.get()
                    cause = event.failure or cause
        except TimeoutError:
            return first
        return cause

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Listens to a member until it is gone."""
        peer = Peer(reader, writer)
        message = await peer.receive()
        if message is None or message["kind"] != "join":
            await peer.aclose()
            return
        if refusal := self._refusal(message):
            peer.send("failed", reason=refusal, restart=False)
            await peer.aclose()
            return
        process_id, members, events = (
            message["process_id"],
            self._members,
            self._events,
        )
        members[process_id] = peer
        while message is not None:
            failure = message.get("failure")
            events.put_nowait(_Event(process_id, failure and Failure(**failure)))
            message = await peer.receive()
        del members[process_id]
        lost = Failure(f"process {process_id} is lost: its supervisor is gone")
        events.put_nowait(_Event(process_id, lost))

    def _refusal(self, message: dict) -> str | None:
        """The reason why a member may not join, if there is one."""
        run, processes = message.get("run"), message.get("processes")
        if (run, processes) != (self._run, self._processes):
            return (
                f"run {run} of {processes} processes came to the coordinator of run "
                f"{self._run} of {self._processes}: give each its own port"
            )
        process_id = message.get("process_id")
        if process_id not in range(self._processes):
            return f"process id is {process_id}, must be 0 to {self._processes - 1}"
        if process_id in self._members:
            return f"process id {process_id} was given to two processes"
        return None

    def _tell(self, kind: str, **values: object) -> None:
        for peer in self._members.values():
            peer.send(kind, **values)
