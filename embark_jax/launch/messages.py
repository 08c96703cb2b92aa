"""Messages between the supervisors of a run: signed JSON, one message a line.

Each end first sends a nonce. From then on a line is a signature and a message::

    HMAC-SHA256(token, sender · nonce of the receiver · nonce of the sender · number
    of the message · message) as 64 hex digits, a space, the message, a newline

So nobody without the token is heard, and a line that was heard before, of this
connection or of another, is not heard again. Messages are not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import re
import secrets
import socket
import sys
from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

DEAD_PEER_S = 10
"""A machine counts as gone after this long without a sign of life."""
_PROBES = 2
REASON_CHARACTERS = 2048
"""Largest number of characters of the reason of a failure."""
REASON_BYTES = 16 * REASON_CHARACTERS
"""Largest number of bytes of a failure as JSON: up to 12 for a character."""
LINE_BYTES = 2 * REASON_BYTES
"""Largest number of bytes of a message as a line."""
CLOSE_S = 5
"""Time for the other end to take what is still on its way when a connection ends."""
_REFUSED = b"refused\n"
"""The only line without a signature: a member has another token."""
_NONCE = re.compile(rb"[0-9a-f]{32}\n")

Role = Literal["member", "rendezvous"]


class RefusedError(Exception):
    """The rendezvous did not take a member's signature."""


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


class _Message(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class Join(_Message):
    """A member wants to take part in the next attempt."""

    kind: Literal["join"] = "join"
    run: str
    processes: PositiveInt
    process_id: NonNegativeInt


class Done(_Message):
    """The process of a member ended well."""

    kind: Literal["done"] = "done"


class Failed(_Message):
    """The process of a member failed."""

    kind: Literal["failed"] = "failed"
    failure: Failure


class Start(_Message):
    """All have joined: members start their processes, which meet at ``port``."""

    kind: Literal["start"] = "start"
    attempt: NonNegativeInt
    port: Annotated[int, Field(ge=1, lt=2**16)]


class End(_Message):
    """How an attempt ended: well, or for a reason, and then perhaps to restart."""

    kind: Literal["end"] = "end"
    reason: str | None = None
    restart: bool = False


Message = Join | Done | Failed | Start | End
_MESSAGE = pydantic.TypeAdapter(Annotated[Message, Field(discriminator="kind")])


class Peer:
    """The other end of a connection, which must have the same token.

    Args:
      reader, writer: the connection; the reader's limit must be LINE_BYTES.
      token: the secret of the run.
      role: what this end is.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        token: bytes,
        role: Role,
    ):
        self._reader, self._writer = reader, writer
        self._token = token
        self._roles = (role, "rendezvous" if role == "member" else "member")
        self._nonces = (secrets.token_hex(16).encode(), b"")
        self._counts = [0, 0]
        _notice_death(writer.get_extra_info("socket"))

    async def greet(self) -> bool:
        """Exchanges nonces; returns whether the other end speaks as it should."""
        own_nonce, _ = self._nonces
        try:
            self._writer.write(own_nonce + b"\n")
            line = await self._reader.readline()
        except (OSError, ValueError):
            return False
        self._nonces = (own_nonce, line.strip())
        return _NONCE.fullmatch(line) is not None

    def send(self, message: Message) -> None:
        """Sends a message; ``receive`` notices if the peer is gone."""
        body = message.model_dump_json().encode()
        self._writer.write(self._signature(0, body) + b" " + body + b"\n")

    async def receive(self) -> Message | None:
        """Returns the next message, or None once the peer is gone, or sends what is
        not signed, too long, or no message.

        Raises:
          RefusedError: if the rendezvous did not take the signature of this end.
        """
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):  # ValueError: it is too long
            return None
        if line == _REFUSED:
            raise RefusedError
        signature, _, body = line.removesuffix(b"\n").partition(b" ")
        if not hmac.compare_digest(signature, self._signature(1, body)):
            return None
        try:
            return _MESSAGE.validate_json(body)
        except pydantic.ValidationError:
            return None

    def refuse(self) -> None:
        """Says that a signature was wrong, and nothing else."""
        self._writer.write(_REFUSED)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._writer.transport.abort()

    async def aclose(self) -> None:
        """Sends what is still waiting, for a while, and ends the connection."""
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.close()
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        self.abort()

    def _signature(self, sender: Literal[0, 1], body: bytes) -> bytes:
        """Signs the next message of this end (0) or of the other one (1)."""
        number = self._counts[sender]
        self._counts[sender] += 1
        signed = (
            self._roles[sender].encode(),
            self._nonces[1 - sender],
            self._nonces[sender],
            str(number).encode(),
            body,
        )
        return hmac.digest(self._token, b" ".join(signed), "sha256").hex().encode()


def _notice_death(connection: socket.socket) -> None:
    """Has the kernel probe the other machine, which may lose power without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":  # elsewhere it takes hours
        tcp, every_s = socket.IPPROTO_TCP, DEAD_PEER_S // (_PROBES + 1)
        connection.setsockopt(tcp, socket.TCP_KEEPIDLE, every_s)
        connection.setsockopt(tcp, socket.TCP_KEEPINTVL, every_s)
        connection.setsockopt(tcp, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
