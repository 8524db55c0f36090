"""Maintenance from a timer: for any endpoint, and it ends in its time, whatever the store does."""

import asyncio
from pathlib import Path

from onceonly import Endpoint


async def test_a_store_that_does_not_answer_takes_no_longer_than_the_time_that_remains() -> None:
    """It accepts the connection and is silent. Its driver would wait for ten seconds, and then raise."""
    over, connected = asyncio.Event(), asyncio.Event()

    async def keep_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        report = await Endpoint("shop", store=f"postgresql://postgres@127.0.0.1:{port}/shop").maintain(remaining=1.0)
        await connected.wait()
        over.set()
    assert report.tasks == {}
    assert report.troubles == ("its time was over before store and transport were open",)


async def test_an_endpoint_without_handlers_is_maintained(tmp_path: Path) -> None:
    """Such as that of a web application, whose transactions only send."""
    report = await Endpoint("shop", store=f"sqlite:///{tmp_path}/store.db").maintain()
    assert "removing expired claims" in report.tasks
    assert report.troubles == ()
