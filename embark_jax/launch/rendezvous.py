"""The supervisors of a run meet here, and decide together how it goes on.

The supervisor of process 0 serves the rendezvous. An attempt begins once all have
joined. It ends when all are done, or when one reports a failure or is gone: then all
hear of the same first failure, and whether to join again.

    member → rendezvous   join, then done or failed
    rendezvous → member   start, then end

Whoever does not have the run's token is sent away, and learns nothing of the run.
"""

from __future__ import annotations

import asyncio
import dataclasses

from embark_jax.launch.messages import (
    LINE_BYTES,
    Done,
    End,
    Failed,
    Failure,
    Join,
    Message,
    Peer,
    Start,
)
from embark_jax.launch.process_group import free_port, listening_address

JOIN_TIMEOUT_S = 300
"""Time for all to join the first time: schedulers may start them minutes apart."""
RETURN_TIMEOUT_S = 15
"""Time for all to join again after a failure; a lost one as a new process."""
SETTLE_S = 2
"""Time to wait for the cause of a failure that may be a symptom."""
GREETING_S = 10
"""Time for a connection to say who it is."""
MOST_STRANGERS = 64
"""Connections that may be about to say so; another one ends the oldest of them."""


@dataclasses.dataclass(frozen=True)
class _Event:
    """A member joined or is done, or it failed or is lost."""

    process_id: int
    failure: Failure | None = None


class Rendezvous:
    """The meeting point of a run's supervisors.

    Args:
      run: name of the run; members of other runs are refused.
      token: the secret that members share.
      processes: number of processes.
      max_restarts: number of attempts after the first.
    """

    def __init__(self, run: str, token: bytes, processes: int, max_restarts: int):
        self._run = run
        self._token = token
        self._processes = processes
        self._max_restarts = max_restarts
        self._strangers: dict[Peer, None] = {}  # the oldest first
        self._new_attempt()

    def _new_attempt(self) -> None:
        # Messages from connections of the last attempt no longer count.
        self._members: dict[int, Peer] = {}
        self._events: asyncio.Queue[_Event] = asyncio.Queue()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Lets members in; raises ``OSError`` if the port is taken.

        Args:
          host: name by which members know this machine. Only this machine hears a
            loopback address; otherwise all networks are listened to.
          port: the port.
        """
        return await asyncio.start_server(
            self._welcome, listening_address(host), port, limit=LINE_BYTES
        )

    async def serve(self) -> None:
        """Serves all attempts, to the end of the run."""
        for attempt in range(self._max_restarts + 1):
            failure = await self._attempt(attempt)
            peers = list(self._members.values())
            restart = False
            if failure is None:
                self._tell(End())
            else:
                restart = attempt < self._max_restarts and not failure.final
                self._tell(End(reason=failure.reason, restart=restart))
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
        self._tell(Start(attempt=attempt, port=free_port()))
        while joined:
            event = await self._events.get()
            if event.failure is not None:
                return await self._cause(event.failure)
            joined.discard(event.process_id)
        return None

    async def _cause(self, first: Failure) -> Failure:
        """Returns the first failure, or its cause, if a member reports it soon."""
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
        peer = Peer(reader, writer, self._token, "rendezvous")
        try:
            join = await self._introduction(peer)
            if join is None:
                return
            if refusal := self._refusal(join):
                peer.send(End(reason=refusal))
                return
            await self._listen_to(peer, join.process_id)
        finally:
            await peer.aclose()

    async def _introduction(self, peer: Peer) -> Join | None:
        """Returns who it is, or None if it is nobody of this run, or takes too long."""
        self._strangers[peer] = None
        if len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        try:
            async with asyncio.timeout(GREETING_S):
                if not await peer.greet():
                    return None
                message = await peer.receive()
        except TimeoutError:
            return None
        finally:
            self._strangers.pop(peer, None)
        if isinstance(message, Join):
            return message
        peer.refuse()
        return None

    async def _listen_to(self, peer: Peer, process_id: int) -> None:
        members, events = self._members, self._events
        members[process_id] = peer
        events.put_nowait(_Event(process_id))
        try:
            while isinstance(message := await peer.receive(), Done | Failed):
                failure = message.failure if isinstance(message, Failed) else None
                events.put_nowait(_Event(process_id, failure))
        finally:
            del members[process_id]
            lost = Failure(f"process {process_id} is lost: its supervisor is gone")
            events.put_nowait(_Event(process_id, lost))

    def _refusal(self, join: Join) -> str | None:
        """Returns the reason why a member may not join, if there is one."""
        if (join.run, join.processes) != (self._run, self._processes):
            return (
                f"run {join.run} of {join.processes} processes came to the coordinator "
                f"of run {self._run} of {self._processes}: give each its own port"
            )
        if join.process_id not in range(self._processes):
            return (
                f"process id is {join.process_id}, must be 0 to {self._processes - 1}"
            )
        if join.process_id in self._members:
            return f"process id {join.process_id} was given to two processes"
        return None

    def _tell(self, message: Message) -> None:
        for peer in self._members.values():
            peer.send(message)
