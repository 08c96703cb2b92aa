"""Messages between the supervisors of a run: JSON objects, one per line."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import sys
from typing import Any

DEAD_PEER_S = 10
"""A machine counts as gone after this long without a sign of life."""
_PROBES = 2
REASON_BYTES = 8192
"""Largest number of bytes of a failure as JSON."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a process failed.

    Attributes:
      reason: in words.
      symptom: whether the failure of another process may have caused it, as for an
        error of a collective.
      final: whether it would happen again, so that a restart is no use.
    """

    reason: str
    symptom: bool = False
    final: bool = False


class Peer:
    """The other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        _notice_death(writer.get_extra_info("socket"))

    def send(self, kind: str, **values: Any) -> None:
        """Sends a message; ``receive`` notices if the peer is gone."""
        self._writer.write(json.dumps({"kind": kind, **values}).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message, or None once the peer is gone or sends nonsense."""
        try:
            message = json.loads(await self._reader.readline())
        except (OSError, ValueError):  # also for a line that is empty or too long
            return None
        return message if isinstance(message, dict) and "kind" in message else None

    async def aclose(self) -> None:
        """Sends what is still waiting, and ends the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _notice_death(connection: socket.socket) -> None:
    """Has the kernel probe the other machine, which may lose power without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere it takes hours
        tcp, every_s = socket.IPPROTO_TCP, DEAD_PEER_S // (_PROBES + 1)
        connection.setsockopt(tcp, socket.TCP_KEEPIDLE, every_s)
        connection.setsockopt(tcp, socket.TCP_KEEPINTVL, every_s)
        connection.setsockopt(tcp, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
