"""What the RabbitMQ transport promises beyond its port: acknowledgements, outages, delays, counting, processes."""

import asyncio
import multiprocessing
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from pamqp import commands as spec
from pamqp.frame import marshal

from onceonly.adapters.rabbitmq import inbox as rabbitmq_inbox
from onceonly.adapters.rabbitmq import queue_depth, topology
from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.inbox import RabbitMQReceipt
from onceonly.adapters.rabbitmq.link import Channel, RabbitMQLink, translated
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import CommitFailed, OutcomeUnknown, RetryableError, SetupError
from onceonly.model.message import Failure, FailureKind, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.queues.reconnection import LONGEST_PAUSE_SECONDS
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from onceonly.runtime.worker.backpressure import UNKNOWN_MOST_SECONDS
from tests.adapters.rabbitmq.competing_receivers import take_and_die, work
from tests.adapters.rabbitmq.harness import EVENT, PATIENCE, TOPOLOGY, Broker, Proxy, commands, ids, message, opened, take


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`, subscribed to one event."""
    async with opened() as place:
        yield place


# Acknowledging


async def test_many_are_acknowledged_at_once_but_none_that_is_in_work(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiple only up to a tag below which every delivery is finished; the others one by one."""
    transport = await broker.transport()
    await transport.send(commands(*"abcdefg"))
    a, b, c, d, e, f, g = await take(transport, 7)
    acks = watched_acks(transport, monkeypatch)
    await transport.ack([b, a, d, e])
    await transport.ack([c, g])
    await transport.ack([f])
    tags = [receipt.tag for each in (b, e, d, c, g, f) if isinstance(receipt := each.receipt, RabbitMQReceipt)]
    assert acks == [(tags[0], True), (tags[2], False), (tags[1], False), (tags[3], True), (tags[4], False), (tags[5], True)]
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)


def watched_acks(transport: RabbitMQTransport, patch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Return what is acknowledged from now on: tags, and whether all below them are meant as well."""
    channel = transport._inbox._channel
    assert channel is not None
    acks: list[tuple[int, bool]] = []
    really = channel.basic_ack

    async def watched(tag: int, multiple: bool = False, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - the driver's signature
        acks.append((tag, multiple))
        await really(tag, multiple=multiple, wait=wait)

    patch.setattr(channel, "basic_ack", watched)
    return acks


async def test_many_behind_one_in_work_are_acknowledged_with_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quorum queue writes each acknowledgement to its log, so one for all is worth a short wait."""
    monkeypatch.setattr(rabbitmq_inbox, "ACK_SECONDS", PATIENCE)
    transport = await broker.transport()
    await transport.send(commands("a", "failing", *(f"m{number}" for number in range(20))))
    first, failing, *others = await take(transport, 22)
    acks = watched_acks(transport, monkeypatch)
    await transport.ack([first, *others])
    assert len(acks) == 1
    await transport.ack([failing])
    assert len(acks) == 2
    assert all(multiple for _, multiple in acks)
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_many_behind_one_in_work_do_not_wait_for_long(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take an hour. They are acknowledged one by one after a moment."""
    monkeypatch.setattr(rabbitmq_inbox, "ACK_SECONDS", 0.0)
    transport = await broker.transport()
    await transport.send(commands("slow", *(f"m{number}" for number in range(20))))
    slow, *others = await take(transport, 21)
    await transport.ack(others)
    async with asyncio.timeout(PATIENCE):
        while transport._inbox._unacknowledged:  # noqa: ASYNC110 - a private state, of which no event tells
            await asyncio.sleep(0)
    await transport._link._reconnection.drop()
    again = await take(await broker.transport(), 1)
    assert ids(again) == ids([slow]) == ["slow"]


async def test_what_waits_to_be_acknowledged_is_acknowledged_at_the_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stops leaves no copies of what it has handled."""
    monkeypatch.setattr(rabbitmq_inbox, "ACK_SECONDS", PATIENCE)
    transport = await broker.transport()
    await transport.send(commands("slow", *(f"m{number}" for number in range(20))))
    slow, *others = await take(transport, 21)
    await transport.ack(others)
    await transport.close()
    await transport._link._reconnection.drop()
    again = await take(await broker.transport(), 21)
    assert ids(again) == ids([slow])


async def test_a_worker_that_takes_more_and_more_changes_its_consumer_seldom(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message at a time, and none is settled. A change stops all receivers: at most four changes make room for 40."""
    transport, ahead = await broker.transport(), []
    await transport.send(commands(*(f"m{number}" for number in range(60))))
    really = rabbitmq_inbox.consume

    async def watched(*arguments: Any) -> str:
        ahead.append(transport._inbox._prefetch)
        return await really(*arguments)

    monkeypatch.setattr(rabbitmq_inbox, "consume", watched)
    for number in range(40):
        assert len(await take(transport, 1)) == 1
        held, waiting, _ = transport._inbox.counts()
        assert waiting <= 2 * held + 3, f"after {number}"
    assert len(ahead) <= 5
    assert ahead[-1] <= 60


async def test_what_is_kept_back_holds_nobody_up(broker: Broker) -> None:
    """A delivery in work for long does not keep those behind it from being acknowledged, and settled for good."""
    transport = await broker.transport()
    await transport.send(commands("slow", *"abc"))
    slow, *others = await take(transport, 4)
    await transport.ack(others)
    await transport._link._reconnection.drop()
    again = await take(await broker.transport(), 1)
    assert ids(again) == ids([slow]) == ["slow"]


async def test_a_delivery_whose_reject_fails_is_given_to_another(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its channel is abandoned with its connection, as after an acknowledgement that fails. Else the server keeps it."""
    transport, other = await broker.transport(), await broker.transport()
    await transport.send(commands("a"))
    (held,) = await take(transport, 1)

    async def unanswered(_channel: Channel, _tag: int, **_options: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Channel, "basic_reject", unanswered)
    with pytest.raises(OutcomeUnknown, match="cannot requeue a message: no answer within 30 s"):
        await transport._inbox.reject(transport._inbox.current([held.receipt]))
    assert ids(await take(other, 1)) == ["a"]


# Sending


async def test_an_event_nobody_subscribed_to_is_counted(broker: Broker) -> None:
    """It is taken, also when its exchange was not there, and also delayed; nothing of it stays."""
    transport = await broker.transport()
    unheard = [Send(message=message(name)) for name in "ab"]
    assert await transport.send([*unheard, *commands("c")]) == (Answer.TAKEN,) * 3
    assert not transport.unsubscribed.counts
    async with opened(Topology(endpoint="shop")) as deaf:
        other = await deaf.transport()
        soon = SystemClock().now() + 1
        assert await other.send(unheard) == (Answer.TAKEN,) * 2
        assert other.unsubscribed.counts == {"shop.order.v1": 2}
        assert await other.send([Send(message=message(), due=soon)]) == (Answer.TAKEN,)
        while (await other.depth("shop")).delayed:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
        await other.remove([TOPOLOGY])


@pytest.mark.parametrize(("header", "has_traceback"), [(100_000, True), (128_000, False)])
async def test_headers_that_leave_no_room_for_tracebacks_cost_the_tracebacks_only(
    broker: Broker, header: int, *, has_traceback: bool
) -> None:
    """All headers must fit into one frame. The copy carries the count and the reasons in any case."""
    transport, large = await broker.transport(), replace(message("a"), headers=(("x-large", "x" * header),))
    failure = Failure(kind=FailureKind.EXCEPTION, reason="boom", traceback="Traceback\n" * 300)
    copy = Send(message=large, to="shop", attempts=3, history=(failure,) * 3)
    assert await transport.send([copy]) == (Answer.TAKEN,)
    (again,) = await take(transport, 1)
    assert (again.attempts, [each.reason for each in again.history]) == (3, ["boom"] * 3)
    assert [bool(each.traceback) for each in again.history] == [has_traceback] * 3


async def test_a_delayed_command_for_nobody_is_refused(broker: Broker) -> None:
    """Before it is put into a level of delay, where it would wait for ever."""
    transport = await broker.transport()
    due = SystemClock().now() + 60_000
    assert await transport.send(commands("m1", to="nobody", due=due)) == (Answer.REFUSED,)


@pytest.mark.parametrize("headers", [(("x" * 256, ""),), (("x", "y" * 131_000),), (("x", "\ud800"),)])
async def test_headers_that_amqp_cannot_carry_are_refused(broker: Broker, headers: tuple[tuple[str, str], ...]) -> None:
    """The server would close the connection, and every message on it would be in doubt."""
    transport = await broker.transport()
    odd = Send(message=message().__class__(id="odd", source="s", type="t", body=b"", headers=headers), to="shop")
    assert await transport.send([odd, *commands("m1")]) == (Answer.REFUSED, Answer.TAKEN)


async def test_without_a_confirm_the_answer_is_unknown(broker: Broker) -> None:
    """The connection was lost between the messages and their confirms; they may be there, and they are."""
    async with Proxy.before(broker.url) as proxy:
        transport = await broker.transport(url=proxy.through(broker.url))
        await transport.send(commands("first"))
        proxy.swallows = True
        sending = asyncio.create_task(transport.send(commands("a", "b")))
        other = await broker.transport()
        got = await take(other, 3)
        proxy.cut()
        assert await sending == (Answer.UNKNOWN,) * 2
        assert sorted(ids(got)) == ["a", "b", "first"]


# Outages


async def test_a_lost_connection_comes_back(broker: Broker) -> None:
    """Receiving fails while the server is away, as often as it is tried, and works again by itself."""
    async with Proxy.before(broker.url) as proxy:
        transport = await broker.transport(url=proxy.through(broker.url))
        await transport.send(commands("m1"))
        held = await take(transport, 1)
        waiting = asyncio.create_task(transport.receive(10, 3600.0))
        await asyncio.sleep(0.05)
        proxy.refuses = True
        proxy.cut()
        with pytest.raises(CommitFailed):
            await waiting
        for call in (transport.receive(10, 0), transport.send(commands("lost")), transport.depth("shop")):
            with pytest.raises(CommitFailed, match="cannot connect to amqp://"):
                await call
        await transport.ack(held)
        await transport.release(held)
        proxy.refuses = False
        again = await until_it_works(transport.receive, 1, PATIENCE)
        assert (ids(again), [each.suspect for each in again]) == (["m1"], [False])
        await transport.ack(again)
        assert await transport.send(commands("m2")) == (Answer.TAKEN,)
        assert ids(await take(transport, 1)) == ["m2"]


async def test_what_this_process_acknowledged_in_vain_is_no_suspect(broker: Broker) -> None:
    """Nobody tells that an acknowledgement has arrived. The message comes again, and the process that had it has not died."""
    async with Proxy.before(broker.url) as proxy:
        transport = await broker.transport(url=proxy.through(broker.url))
        await transport.send(commands("m1", "m2"))
        held = await take(transport, 2)
        proxy.is_deaf = True
        await transport.ack(held)
        proxy.cut()
        proxy.is_deaf = False
        again = [await until_it_works(transport.receive, 1, PATIENCE) for _ in range(2)]
        assert sorted((*ids(each), each[0].suspect) for each in again) == [("m1", False), ("m2", False)]


async def test_a_queue_that_does_not_answer_is_told(broker: Broker) -> None:
    """One without a leader takes a consumer and says nothing; the worker must not wait for it without a word."""
    async with Proxy.before(broker.url) as proxy:
        transport = await broker.transport(url=proxy.through(broker.url).replace("timeout=10", "timeout=1"))
        assert await transport.receive(1, 0) == ()
        await consumer_gone(transport)
        proxy.swallows = True
        with pytest.raises(CommitFailed, match="cannot receive from queue"):
            await transport.receive(1, 0)
        proxy.swallows = False
        proxy.cut()
        await (await broker.transport()).send(commands("m1"))
        assert ids(await until_it_works(transport.receive, 1, PATIENCE)) == ["m1"]


async def consumer_gone(transport: RabbitMQTransport) -> None:
    """Wait until a transport that does not receive consumes no longer."""
    async with asyncio.timeout(PATIENCE):
        while transport._inbox._resting is not None:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)


async def test_pauses_are_short_enough_to_find_a_server_within_some_seconds() -> None:
    """A worker's longest and the connection's longest together."""
    assert UNKNOWN_MOST_SECONDS + LONGEST_PAUSE_SECONDS <= 3


async def test_attempts_to_connect_are_spaced(broker: Broker) -> None:
    """Within the pause after a failed attempt a call fails at once, without knocking."""
    async with Proxy.before(broker.url) as proxy:
        proxy.refuses = True
        link = RabbitMQLink(read_address(proxy.through(broker.url)), SystemRandomSource())
        errors = []
        for _ in range(50):
            with pytest.raises(CommitFailed) as caught:
                await link.channel(confirms=False)
            errors.append(str(caught.value))
        assert len(set(errors)) == 1
        assert link._reconnection._failures < 10
        await link.close()


async def test_the_number_of_a_closed_channel_is_not_used_again_at_once() -> None:
    """The driver may ask for a new channel before it confirms the close of the old one: the server ends the connection."""
    async with opened() as broker:
        link = RabbitMQLink(read_address(broker.url), SystemRandomSource())

        async def ask_for_a_missing_queue() -> None:
            with suppress(RetryableError, SetupError):
                async with link.temporary_channel() as channel, translated("look for a queue"):
                    used.append(channel.number)
                    await channel.queue_declare(f"missing-{uuid4().hex}", passive=True)

        used: list[int] = []
        for _ in range(20):
            await asyncio.gather(*(ask_for_a_missing_queue() for _ in range(5)))
        assert len(set(used)) == len(used) == 100
        await link.close()


async def test_what_another_process_lost_is_a_suspect(broker: Broker) -> None:
    """Nobody can tell a lost connection from a process that died."""
    transport = await broker.transport()
    await transport.send(commands("m1"))
    await take(transport, 1)
    await transport._link._reconnection.drop()
    assert [each.suspect for each in await take(await broker.transport(), 1)] == [True]


async def test_a_blocked_connection_takes_nothing(broker: Broker) -> None:
    """The server is full and reads no more: an ack would not get through. It goes on when the server does."""
    async with Proxy.before(broker.url) as proxy:
        transport = await broker.transport(url=proxy.through(broker.url))
        assert await transport.receive(1, 0) == ()
        await asyncio.sleep(0.2)  # the consumer is gone, and the line is quiet
        proxy.inject(marshal(spec.Connection.Blocked("low on memory"), 0))
        await (await broker.transport()).send(commands("m1"))
        assert await transport.receive(1, 0.2) == ()
        waiting = asyncio.create_task(transport.receive(1, PATIENCE))
        await asyncio.sleep(0.05)
        proxy.inject(marshal(spec.Connection.Unblocked(), 0))
        assert ids(await waiting) == ["m1"]


# Reading ahead


async def test_what_was_brought_for_nobody_goes_back_unmarked(broker: Broker) -> None:
    """A receiver that is busy keeps nothing from others for long."""
    busy, free = await broker.transport(), await broker.transport()
    assert await busy.receive(10, 0) == ()
    await free.send(commands("a", "b"))
    got = await take(free, 2)
    assert sorted(ids(got)) == ["a", "b"]
    assert not any(each.suspect for each in got)


async def test_receiving_does_not_wait_for_what_is_there(broker: Broker) -> None:
    """A first receive that may not wait takes what waits."""
    await (await broker.transport()).send(commands("a", "b", "c"))
    assert ids(await (await broker.transport()).receive(10, 0)) == ["a", "b", "c"]


# Delays


async def test_delayed_messages_come_when_they_are_due() -> None:
    """Commands and events, through several levels, and never before."""
    clock = SystemClock()
    async with opened(levels=3, tick=100) as broker:
        transport = await broker.transport()
        start = clock.now()
        delays = {"c1": 40, "c2": 130, "c3": 460, "long": 1_100}
        sends = [send for name, delay in delays.items() for send in commands(name, due=start + delay)]
        assert set(await transport.send([*sends, Send(message=message("event"), due=start + 250)])) == {Answer.TAKEN}
        came: dict[str, int] = {}
        while len(came) < 5:
            got = await take(transport, 1)
            came[ids(got)[0]] = clock.now() - start
            await transport.ack(got)
        assert all(came[name] >= delay for name, delay in {**delays, "event": 250}.items())
        assert list(came) == ["c1", "c2", "event", "c3", "long"]
        assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_a_second_is_a_second() -> None:
    """The levels of a real set-up; a message that waits keeps what it remembers."""
    clock = SystemClock()
    async with opened(levels=2) as broker:
        transport = await broker.transport()
        start = clock.now()
        await transport.send([Send(message=message(), to="shop", due=start + 900, attempts=3, alone=True)])
        (got,) = await take(transport, 1)
        assert 900 <= clock.now() - start < 900 + 5_000
        assert (got.attempts, got.alone, got.suspect) == (3, True, False)


# Topology


async def test_declaring_from_many_at_once_is_harmless() -> None:
    """As processes do that start together."""
    async with opened(levels=2) as broker:
        several = [await broker.transport() for _ in range(4)]
        await asyncio.gather(
            *(transport.declare([TOPOLOGY, Topology(endpoint="other", events=(EVENT,))]) for transport in several)
        )
        assert await several[0].send([Send(message=message())]) == (Answer.TAKEN,)
        assert [(await several[0].depth(name)).waiting for name in ("shop", "other")] == [1, 1]
        await several[0].remove([Topology(endpoint="other")])


async def test_a_queue_of_another_kind_is_a_setup_error(broker: Broker) -> None:
    """Saying which, and what to do."""
    async with broker.plain() as channel:
        await channel.queue_declare(broker.names.queue("old"), durable=True)
    with pytest.raises(SetupError, match=r"declare queue '.*old'.*delete it, or use other names with the option prefix="):
        await (await broker.transport()).declare([Topology(endpoint="old")])
    async with broker.plain() as channel:
        await channel.queue_delete(broker.names.queue("old"))


async def test_receiving_from_a_queue_that_is_not_there_is_a_setup_error(broker: Broker) -> None:
    """It works as soon as it is declared."""
    transport = await broker.transport("late")
    with pytest.raises(SetupError, match="onceonly topology create"):
        await transport.receive(1, 0)
    await transport.declare([Topology(endpoint="late")])
    assert await transport.receive(1, 0) == ()
    await transport.remove([Topology(endpoint="late")])


@pytest.mark.parametrize("kind", ["a.b", "a b", "ü/%*#", "x" * 300, ":25"])
async def test_every_event_type_has_an_exchange(kind: str) -> None:
    """Whatever characters it has and however long it is; delayed as well."""
    async with opened(Topology(endpoint="shop", events=(kind,)), tick=10) as broker:
        transport = await broker.transport()
        now = SystemClock().now()
        typed = [Send(message=message().__class__(id=name, source="s", type=kind, body=b"")) for name in "ab"]
        delayed = Send(message=typed[1].message, due=now + 20)
        assert await transport.send([typed[0], delayed]) == (Answer.TAKEN, Answer.TAKEN)
        assert sorted(ids(await take(transport, 2))) == ["a", "b"]


async def test_a_silent_receiver_counts_as_holding(broker: Broker) -> None:
    """Zero would look as if all were done."""
    async with broker.plain() as channel:

        async def nothing(_: object) -> None:
            """Hear, and say nothing."""

        await channel.basic_consume(broker.names.queue("shop"), nothing)
        assert await (await broker.transport()).depth("shop") == Depth(waiting=0, held=1, delayed=0)


async def test_a_consumer_that_is_leaving_holds_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is gone, and nobody answers for it; the queue counts it for some moments more."""
    async with broker.plain() as channel:

        async def nothing(_: object) -> None:
            """Hear, and say nothing."""

        leaving = await channel.basic_consume(broker.names.queue("shop"), nothing)
        counted: list[tuple[int, int] | None] = []

        async def count(link: RabbitMQLink, queue: str) -> tuple[int, int] | None:
            found = await topology.count(link, queue)
            counted.append(found)
            if len(counted) == 2:
                await channel.basic_cancel(leaving.consumer_tag)
            return found

        monkeypatch.setattr(queue_depth, "count", count)
        assert await (await broker.transport()).depth("shop") == Depth(waiting=0, held=0, delayed=0)
        assert counted[:3] == [(0, 1), (0, 1), (0, 0)]


async def test_a_message_that_moves_between_two_levels_is_still_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ counts it nowhere for a moment; nothing is said to be empty before two looks agree."""
    transport = await broker.transport()
    await transport.send(commands("m1", due=SystemClock().now() + 3_600_000))
    looks = 0

    async def count_delayed(link: RabbitMQLink, names: RabbitMQNames, words: Sequence[str]) -> int:
        nonlocal looks
        looks += 1
        return 0 if looks == 1 else await topology.count_delayed(link, names, words)

    monkeypatch.setattr(queue_depth, "count_delayed", count_delayed)
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=1)


# Processes


def test_processes_share_a_queue_and_lose_nothing(tmp_path: Path) -> None:
    """Each message is acknowledged once, by one of them; what a killed one held comes again as a suspect."""
    asyncio.run(_share(tmp_path))


async def _share(folder: Path) -> None:
    async with opened() as broker:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(2)
        files = [folder / name for name in "ab"]
        workers = [context.Process(target=work, args=(broker.url, file.name, barrier, file)) for file in files]
        for worker in workers:
            worker.start()
        for worker in workers:
            await asyncio.to_thread(worker.join)
        assert [worker.exitcode for worker in workers] == [0, 0]
        acked = Counter(line for file in files for line in file.read_text().splitlines())
        assert (len(acked), set(acked.values())) == (200, {1})
        transport = await broker.transport()
        await transport.send(commands("m1"))
        killed = context.Process(target=take_and_die, args=(broker.url,))
        killed.start()
        await asyncio.to_thread(killed.join)
        assert killed.exitcode == -signal.SIGKILL
        assert [each.suspect for each in await take(transport, 1)] == [True]


async def until_it_works(call, *arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN002, ANN201 - any call
    """Try again as the worker does."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call(*arguments)
            except RetryableError:
                await asyncio.sleep(0.05)
