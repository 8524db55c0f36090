"""A service that says what a test wants it to say: real HTTP on loopback, to a real client."""

import asyncio
import json
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request: its first line, the operation that DynamoDB's header names, and its body."""

    line: str
    operation: str
    body: bytes

    @property
    def json(self) -> Any:
        """Read the body."""
        return json.loads(self.body)


class Say(NamedTuple):
    """An answer. Status 0 is none: the connection is closed."""

    status: int
    body: bytes = b""
    headers: str = "x-amzn-RequestId: 1\r\nETag: tag\r\n"


def say_json(status: int, value: object) -> Say:
    """Make an answer of DynamoDB's kind."""
    return Say(status, json.dumps(value).encode())


def refuse(code: str, status: int = 400) -> Say:
    """Make DynamoDB's answer for an error."""
    return say_json(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "told so"})


@asynccontextmanager
async def standing_in(answer: Callable[[Asked], Say]) -> AsyncIterator[tuple[str, list[Asked]]]:
    """Serve; gives the address, and what was asked so far."""
    asked: list[Asked] = []
    serving: set[asyncio.Task[None]] = set()
    writers: set[StreamWriter] = set()

    async def serve(client: StreamReader, to_client: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        writers.add(to_client)
        with suppress(OSError, IncompleteReadError):
            while True:
                asked.append(await _read(client))
                said = answer(asked[-1])
                if not said.status:
                    break
                head = f"HTTP/1.1 {said.status} Said\r\n{said.headers}Content-Length: {len(said.body)}\r\n\r\n"
                to_client.write(head.encode() + said.body)
                await to_client.drain()
        to_client.close()
        with suppress(OSError):
            await to_client.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*serving)


async def _read(client: StreamReader) -> Asked:
    first, *lines = (await client.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await client.readexactly(int(headers.get("content-length", "0")))
    return Asked(first, headers.get("x-amz-target", "").rpartition(".")[2], body)
