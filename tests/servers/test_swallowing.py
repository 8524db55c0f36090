"""The proxy that swallows leaves nothing open, whatever its connections are at when it ends."""

import asyncio
from asyncio import StreamReader, StreamWriter

import pytest

from tests.servers.swallowing import swallowing

TURNS = 12  # of the event loop, between a client that goes and the end; closing takes fewer


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("says", [b"", b"x"], ids=["connects", "speaks"])
async def test_the_end_closes_what_a_client_has_left(turns: int, says: bytes) -> None:
    """In the middle of closing as well: the server sees the end of every connection."""
    arrived, over = asyncio.Event(), asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        arrived.set()
        while await reader.read(100):
            writer.write(b"y")
        writer.transport.abort()
        over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"mysql://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with swallowing(url) as (_, through):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(through.rstrip("/").rsplit(":", 1)[1]))
            if says:
                writer.write(says)
                assert await reader.read(100) == b"y"
            else:
                await arrived.wait()
            writer.transport.abort()
            for _ in range(turns):
                await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await over.wait()


async def test_nothing_is_passed_on_after_a_gap_when_told_so() -> None:
    """A connection without a gap goes on, one with a gap does not."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"mysql://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with swallowing(url) as (swallower, through):
            port = int(through.rstrip("/").rsplit(":", 1)[1])
            (with_gap, to_lose), (without, to_keep) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in ((with_gap, to_lose), (without, to_keep)):
                writer.write(b"a")
                assert await reader.read(1) == b"a"
            swallower.swallow()
            to_lose.write(b"b")
            await swallower.swallowed.wait()
            swallower.pass_on(after_gaps=False)
            swallower.swallowed.clear()
            to_lose.write(b"c")
            await swallower.swallowed.wait()
            to_keep.write(b"d")
            assert await without.read(1) == b"d"
            swallower.pass_on()
            to_lose.write(b"e")
            assert await with_gap.read(1) == b"e"
            for writer in (to_lose, to_keep):
                writer.transport.abort()


@pytest.mark.parametrize(("about", "up"), [(b"", True), (b"b", True), (b"b", False)], ids=["all", "about", "answers"])
async def test_a_broken_connection_stays_broken(about: bytes, up: bool) -> None:  # noqa: FBT001
    """Also when no more are broken; a connection that carried nothing meanwhile goes on."""
    arrived: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(1):
            arrived.append(data)
            writer.write(data)
            if data == b"c":
                over.set()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        url = f"mysql://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with swallowing(url) as (swallower, through):
            port = int(through.rstrip("/").rsplit(":", 1)[1])
            (broken, to_break), (kept, to_keep) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in ((broken, to_break), (kept, to_keep)):
                writer.write(b"a")
                assert await reader.read(1) == b"a"
            swallower.break_connections(about, up=up)
            to_break.write(b"b")
            await swallower.swallowed.wait()
            swallower.keep_connections()
            to_keep.write(b"d")
            assert await kept.read(1) == b"d"
            to_break.write(b"c")
            if not up:
                await over.wait()
            to_keep.write(b"e")
            assert await kept.read(1) == b"e"
            assert sorted(arrived) == sorted([b"a", b"a", b"d", b"e"] + ([] if up else [b"b", b"c"]))
            to_break.transport.abort()
            to_keep.transport.abort()
        assert await broken.read() == b""
