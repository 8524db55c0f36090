"""An endpoint that only sends: others handle its messages."""

import asyncio
from pathlib import Path

import pytest

from onceonly import Endpoint
from onceonly.model.errors import InvalidHandler
from onceonly.ports.transport import Topology
from onceonly.wiring import open_transport


async def test_an_endpoint_without_handlers_sends_what_it_commits_beside_the_block(tmp_path: Path) -> None:
    """Its messages are handled elsewhere; only to run it, something must be there to run."""
    desk = Endpoint("desk", store=f"sqlite:///{tmp_path}/desk.db", transport=f"sqlite:///{tmp_path}/queue.db")
    async with open_transport(desk.settings.transport, "archive") as archive:
        await archive.declare([Topology(endpoint="archive")])
        async with desk.sending():
            async with desk.transaction() as tx:
                tx.send({"name": "a"}, to="archive", type="note")
            async with asyncio.timeout(30):
                while not (taken := await archive.receive(1, 1.0)):
                    pass
        assert [delivery.body for delivery in taken] == [b'{"name":"a"}']
    with pytest.raises(InvalidHandler, match="no handler is registered"):
        async with desk.opened():
            pass
