"""Strangers at the rendezvous: a run hears nobody without its token, and goes on."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.launch import rendezvous as meeting
from embark_jax.launch.messages import (
    LINE_BYTES,
    Done,
    End,
    Failed,
    Failure,
    Join,
    Peer,
    RefusedError,
    Start,
)
from embark_jax.launch.process_group import free_port, listening_address
from embark_jax.launch.rendezvous import Rendezvous
from embark_jax.launch.token import FILE, VARIABLE, shared_token

RUN, TOKEN = "a secret name", b"the token of the run"
NONCE = b"0" * 32 + b"\n"
LOST = End(reason="process 1 is lost: its supervisor is gone")
SECONDS = 10
"""That everything must have happened in."""


@contextlib.asynccontextmanager
async def served(processes: int = 2) -> AsyncIterator[tuple[int, asyncio.Task]]:
    """The port of a rendezvous, and its task."""
    rendezvous = Rendezvous(RUN, TOKEN, processes, max_restarts=0)
    port = free_port()
    server = await rendezvous.listen("127.0.0.1", port)
    serving = asyncio.create_task(rendezvous.serve())
    try:
        async with asyncio.timeout(SECONDS):
            yield port, serving
    finally:
        serving.cancel()
        server.close()


async def joined(port: int, process_id: int, token=TOKEN, processes: int = 2) -> Peer:
    connection = await asyncio.open_connection("127.0.0.1", port, limit=LINE_BYTES)
    peer = Peer(*connection, token, "member")
    assert await peer.greet()
    peer.send(Join(run=RUN, processes=processes, process_id=process_id))
    return peer


async def started(port: int) -> list[Peer]:
    """Both members, at work."""
    members = [await joined(port, i) for i in range(2)]
    for member in members:
        assert isinstance(await member.receive(), Start)
    return members


async def ended_well(members: list[Peer], serving: asyncio.Task) -> None:
    """The attempt is alive: it starts, and ends well."""
    for member in members:
        assert isinstance(await member.receive(), Start)
        member.send(Done())
    assert [await member.receive() for member in members] == [End()] * len(members)
    await serving
    for member in members:
        await member.aclose()


async def answer(port: int, *lines: bytes) -> bytes:
    """All that the rendezvous answers a stranger, its nonce left out."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError):
        for line in lines:
            writer.write(line)
        await writer.drain()
    heard = b""
    with contextlib.suppress(ConnectionError):
        heard = await reader.read()
    writer.close()
    return heard[33:]


JOIN = Join(run=RUN, processes=2, process_id=1).model_dump_json().encode()
STRANGERS = {
    "no greeting": [JOIN + b"\n"],
    "what the old protocol asked": [
        b'{"kind": "join", "run": "x", "processes": 1, "process_id": 0}\n'
    ],
    "no signature": [NONCE, JOIN + b"\n"],
    "another's signature": [NONCE, b"0" * 64 + b" " + JOIN + b"\n"],
    "not UTF-8": [NONCE, b"\xff" * 80 + b"\n"],
    "no message": [NONCE, b"\n"],
    "deep": [NONCE, b"0" * 64 + b" " + b"[" * 50_000 + b"\n"],
    "endless": [NONCE, b"x" * (20 * LINE_BYTES)],
    "an endless greeting": [b"0" * (20 * LINE_BYTES)],
    "HTTP": [b"GET / HTTP/1.1\r\n\r\n"],
}


@pytest.mark.parametrize("lines", STRANGERS.values(), ids=STRANGERS)
async def test_a_stranger_learns_nothing_and_the_attempt_goes_on(lines):
    async with served() as (port, serving):
        first = await joined(port, 0)
        assert await answer(port, *lines) in (b"", b"refused\n")
        await ended_well([first, await joined(port, 1)], serving)


async def test_another_token_is_refused_by_name():
    async with served() as (port, serving):
        stranger = await joined(port, 1, token=b"a guess")
        with pytest.raises(RefusedError):
            await stranger.receive()
        await stranger.aclose()
        members = [await joined(port, i) for i in range(2)]
        await ended_well(members, serving)


async def test_what_was_overheard_is_not_heard_again():
    """A stranger who heard a whole conversation repeats the member's part of it."""
    async with served(processes=1) as (port, serving):
        heard = bytearray()

        async def relay(reader, writer):
            up, down = await asyncio.open_connection("127.0.0.1", port)

            async def pass_on(source, sink, log=None):
                while data := await source.read(4096):
                    if log is not None:
                        log += data
                    sink.write(data)
                sink.close()

            await asyncio.gather(pass_on(reader, down, heard), pass_on(up, writer))

        between = free_port()
        server = await asyncio.start_server(relay, "127.0.0.1", between)
        member = await joined(between, 0, processes=1)
        await ended_well([member], serving)
        server.close()
    async with served(processes=1) as (port, serving):
        assert heard.count(b"\n") == 3  # nonce, join, done
        assert await answer(port, bytes(heard)) == b"refused\n"
        await ended_well([await joined(port, 0, processes=1)], serving)


async def test_a_message_that_comes_twice_ends_the_connection(monkeypatch):
    async with served() as (port, serving):
        members = await started(port)
        writer, written = members[1]._writer, []
        with monkeypatch.context() as patch:
            patch.setattr(writer, "write", written.append)
            members[1].send(Done())
        for line in written * 2:
            writer.write(line)
        assert await members[0].receive() == LOST
        await serving


async def test_the_silent_and_the_slow_are_sent_away(monkeypatch):
    monkeypatch.setattr(meeting, "GREETING_S", 0.3)
    async with served() as (port, serving):
        silent = await asyncio.open_connection("127.0.0.1", port)
        slow = await asyncio.open_connection("127.0.0.1", port)

        async def trickle():
            with contextlib.suppress(ConnectionError):
                while not slow[1].is_closing():
                    slow[1].write(b"0")
                    await slow[1].drain()
                    await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        for reader, _ in (silent, slow):
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until it ends
        trickling.cancel()
        members = [await joined(port, i) for i in range(2)]
        await ended_well(members, serving)


async def test_many_silent_connections_keep_no_member_out():
    async with served() as (port, serving):
        crowd = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3 * meeting.MOST_STRANGERS)
        ]
        members = [await joined(port, i) for i in range(2)]
        await ended_well(members, serving)
        for _, writer in crowd:
            writer.close()


async def test_a_rank_that_comes_twice_is_refused_and_the_attempt_goes_on():
    async with served() as (port, serving):
        first = await joined(port, 0)
        twin = await joined(port, 0)
        end = await twin.receive()
        assert isinstance(end, End)
        assert end.reason == "process id 0 was given to two processes"
        await ended_well([first, await joined(port, 1)], serving)


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"0" * 64 + b' {"kind": "failed", "failure": 3}\n', b"x" * 200_000],
    ids=["nonsense", "not signed", "endless"],
)
async def test_a_member_that_goes_mad_ends_the_attempt_with_a_reason(line):
    async with served() as (port, serving):
        members = await started(port)
        members[1]._writer.write(line)
        assert await members[0].receive() == LOST
        await serving


async def test_a_signed_message_is_checked_too():
    """Such as one of another version of this package."""
    async with served() as (port, serving):
        members = await started(port)
        with pytest.warns(UserWarning, match="serializ"):  # of what is not valid
            members[1].send(Failed.model_construct(kind="failed", failure="?"))
        assert await members[0].receive() == LOST
        await serving


def test_the_longest_reason_arrives():
    failure = Failure("\x00" * 2048)

    async def report():
        async with served(processes=1) as (port, serving):
            member = await joined(port, 0, processes=1)
            assert isinstance(await member.receive(), Start)
            member.send(Failed(failure=failure))
            assert await member.receive() == End(reason=failure.reason)
            await serving

    asyncio.run(report())


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("host0", None),
        ("192.0.2.7", None),
    ],
)
def test_one_machine_listens_to_itself_alone(host, address):
    assert listening_address(host) == address


async def test_the_loopback_port_is_closed_to_other_addresses():
    rendezvous = Rendezvous(RUN, TOKEN, 1, 0)
    server = await rendezvous.listen("localhost", port := free_port())
    assert {s.getsockname()[0] for s in server.sockets} == {"127.0.0.1"}
    # Nothing listens there: another program may.
    with socket.create_server(("127.0.0.2", port)):
        pass
    server.close()


class TestToken:
    @pytest.fixture(autouse=True)
    def unset(self, monkeypatch):
        monkeypatch.delenv(VARIABLE, raising=False)

    def test_process_0_makes_a_file_for_its_owner_alone(self, tmp_path):
        folder = tmp_path / "run"
        token = shared_token(folder, 0)
        assert len(token) == 64
        assert (folder / FILE).stat().st_mode & 0o777 == 0o600
        assert list(folder.iterdir()) == [folder / FILE]
        assert shared_token(folder, 1) == shared_token(folder, 0) == token
        assert shared_token(tmp_path / "other", 0) != token

    def test_the_environment_comes_first(self, tmp_path, monkeypatch):
        monkeypatch.setenv(VARIABLE, "0123456789abcdef\n")
        assert shared_token(tmp_path, 0) == b"0123456789abcdef"
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setenv(VARIABLE, "short")
        with pytest.raises(ConfigError, match=f"{VARIABLE}: has 5 characters, must"):
            shared_token(tmp_path, 0)

    def test_a_file_that_others_can_read_is_no_secret(self, tmp_path):
        shared_token(tmp_path, 0)
        (tmp_path / FILE).chmod(0o640)
        with pytest.raises(ConfigError, match="has mode 640, so that others can read"):
            shared_token(tmp_path, 1)

    def test_a_damaged_file(self, tmp_path):
        (tmp_path / FILE).touch(0o600)
        with pytest.raises(ConfigError, match="has 0 characters, must have at least"):
            shared_token(tmp_path, 0)

    def test_a_folder_that_is_not_shared(self, tmp_path):
        with pytest.raises(
            ConfigError, match=f"do not share this folder, set {VARIABLE}"
        ):
            shared_token(tmp_path, 1, wait_s=0)
