"""LISTEN and NOTIFY wake idle receivers. What they miss costs time and never a message."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.formats.log_events import event_of
from onceonly.model.message import Delivery, Send
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from onceonly.sql import notifications, queue
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SqlTransport
from onceonly_conformance.samples import message
from tests.servers.pgbouncer import pgbouncer

NEVER = 3600.0
LONG = 60.0
SHOP = "shop"


def command(name: str, *, due: int = 0) -> Send:
    """Make a message."""
    return Send(message=message(name), to=SHOP, due=due)


@pytest.fixture(autouse=True)
def _emptied(database: Database) -> None:
    """Have tables, and nothing in them."""


@pytest.fixture(autouse=True)
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that trusts its notifications looks at an empty queue once, and not again by itself."""
    monkeypatch.setattr(queue, "POLL_SECONDS", NEVER)
    monkeypatch.setattr(queue, "_LONGEST_PAUSE_SECONDS", 0.005)


@pytest.fixture
async def receiver(url: str) -> AsyncIterator[SqlTransport]:
    """Open the queue as a process of its own would, and wait until it listens and looks no more."""
    here = await open_database(url, clock=LIVE.clock)
    transport = SqlTransport(here, SHOP)
    await transport.declare([Topology(endpoint=SHOP)])
    try:
        await until_asleep(transport)
        yield transport
    finally:
        await here.close()


@pytest.fixture
async def sender(url: str) -> AsyncIterator[SqlTransport]:
    """Open the queue as another process would."""
    there = await open_database(url, clock=LIVE.clock)
    yield SqlTransport(there, "sender")
    await there.close()


async def until_asleep(transport: SqlTransport) -> None:
    """Receive nothing until a look has found nothing to wait for."""
    async with asyncio.timeout(LONG):
        while not is_asleep(transport):
            assert await transport.receive(10, 0.01) == ()


def is_asleep(transport: SqlTransport) -> bool:
    """Tell whether nothing but a notification makes it look again."""
    heard = transport._notifications.count(SHOP)
    return transport._due == NEVER and transport._is_quiet(heard, asyncio.get_running_loop().time())


def receiving(transport: SqlTransport) -> asyncio.Task[tuple[Delivery, ...]]:
    """Wait for a message."""
    return asyncio.create_task(transport.receive(10, NEVER))


def ids(taken: Iterable[Delivery]) -> list[str]:
    """Name what was received."""
    return [dict(each.headers)["ce-id"] for each in taken]


async def test_a_lone_message_of_another_process_wakes_a_receiver(receiver: SqlTransport, sender: SqlTransport) -> None:
    """Again and again."""
    for name in ("m1", "m2", "m3"):
        received = receiving(receiver)
        await sender.send([command(name)])
        async with asyncio.timeout(LONG):
            taken = await received
        assert ids(taken) == [name]
        await receiver.ack(taken)
        await until_asleep(receiver)


async def test_a_released_message_wakes_the_receivers_of_other_processes(receiver: SqlTransport, sender: SqlTransport) -> None:
    """As a sent one does."""
    other = SqlTransport(sender._database, SHOP)
    await sender.send([command("m1")])
    taken = await other.receive(10, LONG)
    received = receiving(receiver)
    await other.release(taken)
    async with asyncio.timeout(LONG):
        assert ids(await received) == ["m1"]


async def test_a_delayed_message_is_received_when_it_is_due(receiver: SqlTransport, sender: SqlTransport) -> None:
    """The receiver sleeps until then; nobody notifies it at that moment."""
    due = LIVE.clock.now() + 400
    received = receiving(receiver)
    await sender.send([command("m1", due=due)])
    async with asyncio.timeout(LONG):
        assert ids(await received) == ["m1"]
    assert LIVE.clock.now() >= due


async def test_an_idle_receiver_sends_no_statement(receiver: SqlTransport) -> None:
    """From one call to the next."""
    heard: list[str] = []
    event.listen(receiver._database.engine.sync_engine, "before_cursor_execute", lambda *args: heard.append(args[2]))
    for _ in range(20):
        assert await receiver.receive(10, 0.001) == ()
    assert heard == []


async def test_a_call_that_may_not_wait_looks(receiver: SqlTransport, sender: SqlTransport) -> None:
    """Whatever was heard."""
    await sender.send([command("m1")])
    assert ids(await receiver.receive(10, 0)) == ["m1"]


async def test_a_lost_connection_is_made_again(
    receiver: SqlTransport, sender: SqlTransport, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss and the recovery are logged. Meanwhile the queue is polled."""
    caplog.set_level(logging.INFO, logger="onceonly.queue")
    received = receiving(receiver)
    async with database.writing() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        )
    await sender.send([command("m1")])
    async with asyncio.timeout(LONG):
        taken = await received
        assert ids(taken) == ["m1"]
        await receiver.ack(taken)
        await until_asleep(receiver)
    received = receiving(receiver)
    await sender.send([command("m2")])
    async with asyncio.timeout(LONG):
        assert ids(await received) == ["m2"]
    said = [event_of(record) for record in caplog.records if record.name == "onceonly.queue"]
    assert said[:1] == ["queue notifications lost, polling the database"]
    assert "queue notifications restored" in said


async def test_a_message_whose_notification_is_lost_waits_for_the_next_poll(
    receiver: SqlTransport, sender: SqlTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not longer: an empty queue is polled every few seconds while notifications are received."""
    monkeypatch.setattr(sender, "_notify", lambda _: None)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.02)
    receiver._look_at, receiver._due = 0.0, 0.02
    async with asyncio.timeout(LONG):
        await sender.send([command("m1")])
        assert ids(await receiver.receive(10, NEVER)) == ["m1"]


async def test_notifications_of_a_busy_sender_are_few(sender: SqlTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at once, and the next after a pause, for all that was sent meanwhile. Other queues do not wait for it."""
    sent = await noted(sender._database, monkeypatch)
    monkeypatch.setattr(notifications, "FIRST_INTERVAL_SECONDS", NEVER)
    told = sender._database.notifications
    for _ in range(20):
        told.tell({SHOP})
        await asyncio.sleep(0)
    told.tell({"other"})
    await told.close()
    assert [len(words) for words in sent] in ([1, 2], [1, 1, 1])


def test_the_interval_grows_while_a_queue_is_busy() -> None:
    """To half a second, and shrinks after a pause."""
    pace, now = notifications.NotificationPace(0.0, 0.0).after(100.0), 100.0
    intervals = [pace.interval]
    for _ in range(4):
        now = pace.not_before + 0.001
        pace = pace.after(now)
        intervals.append(pace.interval)
    assert intervals == [0.01, 0.04, 0.16, 0.5, 0.5]
    assert pace.after(now + 10).interval == 0.01


async def test_what_is_sent_before_the_end_is_notified(receiver: SqlTransport, url: str) -> None:
    """As by `onceonly send`, which ends at once."""
    received = receiving(receiver)
    short = await open_database(url, clock=LIVE.clock)
    await SqlTransport(short, "sender").send([command("m1")])
    await short.close()
    async with asyncio.timeout(LONG):
        assert ids(await received) == ["m1"]


async def test_behind_a_pooler_the_queue_is_polled(url: str, postgresql_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """LISTEN belongs to a session. The log and the transport tell; senders behind a pooler notify receivers that are not."""
    caplog.set_level(logging.INFO, logger="onceonly.queue")
    with pgbouncer(postgresql_url) as through:
        pooled = make_url(through).set(drivername=make_url(url).drivername).render_as_string(hide_password=False)
        far, near = await open_database(pooled, clock=LIVE.clock), await open_database(url, clock=LIVE.clock)
        try:
            polling, notified = SqlTransport(far, SHOP), SqlTransport(near, SHOP)
            await polling.declare([Topology(endpoint=SHOP)])
            await until_asleep(notified)
            assert (polling.wake_up, notified.wake_up) == ("polling", "notifications")
            received = receiving(notified)
            await polling.send([command("m1")])
            async with asyncio.timeout(LONG):
                assert ids(await received) == ["m1"]
                received = receiving(polling)
                await notified.send([command("m2")])
                assert ids(await received) == ["m2"]
        finally:
            await far.close()
            await near.close()
    (record,) = (each for each in caplog.records if event_of(each) == "queue polls the database")
    assert record.reason == notifications.POOLED  # type: ignore[attr-defined]


async def noted(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note what is notified."""
    sent: list[list[str]] = []
    notify: Callable[[AsyncEngine, str, Iterable[str]], Awaitable[None]] = database.dialect.notify

    async def note(engine: AsyncEngine, channel: str, words: Iterable[str]) -> None:
        sent.append(list(words))
        await notify(engine, channel, words)

    monkeypatch.setattr(database.dialect, "notify", note)
    return sent
