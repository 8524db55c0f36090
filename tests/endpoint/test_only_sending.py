"""An endpoint that only sends: others handle its messages."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_store, open_transport, temporary_transport
from onceonly.endpoint.host import host_of
from onceonly.model.errors import InvalidHandler, QueueMissing, SetupError
from onceonly.model.message import Delivery
from onceonly.ports.transport import Topology
from tests.servers.available import RABBITMQ, free_port, need


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
        with pytest.raises(QueueMissing):  # one that nobody reads would grow
            await archive.depth("desk")
    with pytest.raises(InvalidHandler, match="no handler is registered"):
        async with desk.opened():
            pass


async def test_an_endpoint_with_handlers_has_its_queue_also_where_it_only_sends(tmp_path: Path) -> None:
    """They say what it subscribes to, and what comes meanwhile waits for the process that handles it."""
    desk = Endpoint("desk", store=f"sqlite:///{tmp_path}/desk.db", transport=f"sqlite:///{tmp_path}/queue.db")

    @desk.handler(type="note")
    async def note(body: dict[str, str]) -> None:
        """Do nothing."""

    async with desk.sending(), open_transport(desk.settings.transport, "desk") as own:
        async with desk.transaction() as tx:
            tx.publish({"name": "a"}, type="note")
        async with asyncio.timeout(30):
            while not (await own.depth("desk")).waiting:  # noqa: ASYNC110 - another connection changes it
                await asyncio.sleep(0.01)


async def test_nobody_waits_for_a_broker_that_is_away_from_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that does not even refuse would hold each transaction up: what it sends is left to the relay that is to come."""
    away = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    desk = Endpoint("desk", store=f"sqlite:///{tmp_path}/desk.db", transport=away)
    async with desk.sending():
        async with desk.transaction() as tx:
            tx.send({"name": "a"}, to="archive", type="note")
        assert "onceonly.transaction" not in {record.name for record in caplog.records}  # nobody tried
        assert host_of(desk).notifier.is_expected
    assert not host_of(desk).notifier.is_expected
    async with desk.transaction() as tx:  # now there is no relay to come, so it tries, and tells that it could not
        tx.send({"name": "b"}, to="archive", type="note")
    assert "onceonly.transaction" in {record.name for record in caplog.records}
    async with open_store(desk.settings) as opened:
        assert opened.pending is not None
        assert len(await opened.pending.undispatched(1 << 52, 10)) == 2


async def test_who_only_sends_to_rabbitmq_needs_no_queue_for_delays() -> None:
    """Commands and events, at once and later, and still no queue of its own."""
    url = f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}."
    archived = [Topology(endpoint="archive", events=("told",))]
    desk = Endpoint("desk", store="memory://desk", transport=url)
    async with temporary_transport(url, archived), open_transport(url, "archive") as archive:
        await archive.declare(archived)
        async with desk.sending():
            async with desk.transaction() as tx:
                tx.send({"name": "now"}, to="archive", type="note")
                tx.send({"name": "later"}, to="archive", type="note", delay=1)
                tx.publish({"name": "told"}, type="told")
            taken: list[Delivery] = []
            async with asyncio.timeout(30):
                while len(taken) < 3:
                    taken += await archive.receive(3, 1.0)
            await archive.ack(taken)
        assert {delivery.body for delivery in taken} == {b'{"name":"%s"}' % name for name in (b"now", b"later", b"told")}
        with pytest.raises(QueueMissing):
            await archive.depth("desk")


async def test_a_broker_that_refuses_is_told_at_start_though_nothing_is_declared() -> None:
    """Such as a virtual host that is not there."""
    desk = Endpoint("desk", store="memory://desk", transport=f"{need(RABBITMQ).rstrip('/')}/no-such-host")
    with pytest.raises(SetupError, match="no-such-host"):
        async with desk.sending():
            pass
