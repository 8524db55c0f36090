"""A destination that does not confirm, or cannot be looked up: it costs its own messages, and delays no others."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.link import API, NatsLink
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.nats.harness import EVENT, PATIENCE, TOPOLOGY, Broker, commands, ids, message, opened, take
from tests.servers.nats import own_nats

MUTE = Topology(endpoint="mute", events=(EVENT,))
TAKEN, UNKNOWN = Answer.TAKEN, Answer.UNKNOWN
FOREVER = 10_000.0
"""Seconds for an answer: a test that waits for them fails."""
STORED = b'{"stream": "other", "seq": 1}'


class Mute:
    """A program that receives what is sent to a queue, and answers only when it is told to."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.received: asyncio.Queue[Msg] = asyncio.Queue()

    async def answer(self, request: Msg) -> None:
        """Answer as a stream does that has stored the message."""
        await self._client.publish(request.reply, STORED)


@asynccontextmanager
async def muted(broker: Broker) -> AsyncIterator[Mute]:
    """Put the program in the place of the stream of `mute`."""
    link = await broker.link()
    await link.api(f"STREAM.DELETE.{broker.names.queue('mute')}")
    async with broker.plain() as client:
        mute = Mute(client)
        await client.subscribe(broker.names.queue_subject("mute"), cb=mute.received.put)
        await client.flush()
        yield mute


async def known_as_silent(broker: Broker, mute: Mute) -> tuple[NatsTransport, NatsLink]:
    """Send to it once, in vain. From then on an answer may take forever."""
    link = await broker.link(f"{broker.url.partition('&timeout')[0]}&timeout=1")
    transport = NatsTransport(link, "shop", clock=(await broker.transport())._clock)
    assert await transport.send([*commands("m1"), *commands("x1", to="mute")]) == (TAKEN, UNKNOWN)
    await mute.received.get()
    link.address = replace(link.address, timeout=FOREVER)
    return transport, link


async def test_a_destination_that_was_silent_delays_no_others_and_is_trusted_when_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A message without a confirmation is not sent. A late confirmation ends the silence."""
    caplog.set_level(logging.INFO, "onceonly.transport")
    both = [*commands("x2", to="mute"), *commands("m2"), Send(message=message("e1"))]
    async with opened(TOPOLOGY, MUTE) as broker, muted(broker) as mute, asyncio.timeout(PATIENCE):
        transport, _ = await known_as_silent(broker, mute)
        for _ in range(3):
            assert await transport.send(both) == (UNKNOWN, TAKEN, UNKNOWN)  # the event has the two as subscribers
        assert caplog.text.count("destination does not confirm messages") == 1
        await mute.answer(await mute.received.get())
        while "destination confirms messages again" not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0)
        for _ in range(5):  # of the three calls: two requests each, and one is answered
            await mute.received.get()
        sending = asyncio.create_task(transport.send(both))
        requests = [await mute.received.get() for _ in range(2)]
        await take(await broker.transport(), 8)  # the others are stored
        assert not sending.done()
        for request in requests:
            await mute.answer(request)
        assert await sending == (TAKEN, TAKEN, TAKEN)


async def test_calls_that_wait_for_a_destination_end_when_another_finds_it_silent() -> None:
    """Its silence is waited for once in a process."""
    async with opened(TOPOLOGY, MUTE) as broker, muted(broker) as mute, asyncio.timeout(PATIENCE):
        transport, link = await known_as_silent(broker, mute)
        connection = await link.connection()
        link._silent.discard(broker.names.queue_subject("mute"))
        waiting = asyncio.create_task(transport.send([*commands("m2"), *commands("x2", to="mute")]))
        await mute.received.get()
        link._silent.add([broker.names.queue_subject("mute")])
        connection.end_waits()
        assert await waiting == (TAKEN, UNKNOWN)


async def test_a_silent_destination_costs_no_connection() -> None:
    """Others receive and send on it. A message to the silent one alone is unknown, and does not wait for `timeout=`."""
    async with opened(TOPOLOGY, MUTE) as broker, muted(broker) as mute, asyncio.timeout(PATIENCE):
        transport, link = await known_as_silent(broker, mute)
        connection = await link.connection()
        assert await transport.send(commands("x2", to="mute")) == (UNKNOWN,)
        assert await link.connection() is connection
        assert ids(await take(transport, 1)) == ["m1"]


async def test_a_stream_of_delayed_messages_that_is_silent_delays_no_others() -> None:
    """Each delayed message has a subject of its own; they have one stream."""
    async with opened(TOPOLOGY, MUTE) as broker, asyncio.timeout(PATIENCE):
        link = await broker.link(f"{broker.url.partition('&timeout')[0]}&timeout=1")
        transport = NatsTransport(link, "shop", clock=(await broker.transport())._clock)
        found = await link.api(f"STREAM.INFO.{broker.names.delayed}")
        assert found is not None
        await link.api(f"STREAM.UPDATE.{broker.names.delayed}", found["config"] | {"no_ack": True})
        due = transport._clock.now() + 3_600_000
        assert await transport.send([*commands("d1", due=due), *commands("m1")]) == (UNKNOWN, TAKEN)
        link.address = replace(link.address, timeout=FOREVER)
        for number in range(3):
            sends = [*commands("d2", due=due + 60_000 * number), *commands("m2")]
            assert await transport.send(sends) == (UNKNOWN, TAKEN)


async def test_queues_that_do_not_exist_are_looked_for_once_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each message."""
    asked: list[str] = []
    has_stream = topology.has_stream

    async def counted(link: NatsLink, subject: str) -> bool:
        asked.append(subject)
        return await has_stream(link, subject)

    monkeypatch.setattr(topology, "has_stream", counted)
    async with opened() as broker:
        sends = [each for number in range(20) for each in commands(f"x{number}", to="nobody")]
        assert await (await broker.transport()).send([*sends, *commands("m1")]) == (*([Answer.REFUSED] * 20), TAKEN)
        assert asked == [broker.names.queue_subject("nobody")]


@pytest.mark.parametrize("what", ["STREAM.INFO.{}onceonly-subscriptions", "STREAM.NAMES"])
async def test_what_cannot_be_looked_up_holds_up_no_others(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Subscribers of events, and whether a queue exists that does not answer. The reason is logged once."""
    with own_nats() as server:
        server.start()
        async with opened(server=server.url) as broker:
            prefix = broker.url.partition("prefix=")[2].partition("&")[0].replace(".", "=2e")
            server.stop()
            denied = f'publish: {{deny: "{API}{what.format(prefix)}"}}'
            users = f"{{user: all, password: p}}, {{user: few, password: p, permissions: {{{denied}}}}}"
            server.start(f"authorization: {{users: [{users}]}}\nno_auth_user: all")
            url = broker.url.replace("nats://", "nats://few:p@")
            transport = await broker.transport(url=url)
            odd = Send(message=message("e1")) if "INFO" in what else commands("x1", to="nobody")[0]
            for number in range(2):
                assert await transport.send([odd, *commands(f"m{number}")]) == (UNKNOWN, TAKEN)
            assert sorted(ids(await take(transport, 2))) == ["m0", "m1"]
            if "INFO" in what:
                (logged,) = [each for each in caplog.records if each.message.startswith("destination cannot be served")]
                assert "permission" in logged.__dict__["reason"]
