"""What may happen at once in one process: receivers that are cancelled, senders that find no channel, deliveries given back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from onceonly.model.errors import OutcomeUnknown
from onceonly.runtime.worker.transports import PatientTransport
from tests.adapters.rabbitmq.harness import PATIENCE, Broker, commands, ids, opened


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Declare the queue of one endpoint, `shop`."""
    async with opened() as broker:
        yield broker


async def all_that_waits(broker: Broker) -> list[str]:
    """Receive and acknowledge, as another process, until nothing comes; gives the ids, a suspect's with a mark."""
    transport, found = await broker.transport(), []
    while deliveries := await transport.receive(100, 0.7):
        found += [dict(each.headers)["ce-id"] + ("!" if each.suspect else "") for each in deliveries]
        await transport.ack(deliveries)
    return sorted(found)


async def test_a_cancelled_receive_leaves_no_consumer_that_takes_everything(broker: Broker) -> None:
    """Nobody is there for what it would bring, and no process died."""
    transport = await broker.transport()
    names = [f"m{number:03}" for number in range(300)]
    await transport.send(commands(*names))
    inbox = transport._inbox
    receiving = asyncio.create_task(transport.receive(10, 0.5))
    async with asyncio.timeout(PATIENCE):
        while not inbox._serial:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    assert await all_that_waits(broker) == names
    await transport.close()
    assert inbox.brought == 0


async def test_senders_that_find_no_channel_open_one(broker: Broker) -> None:
    """However many they are, and however often the server ends it."""
    transport = await broker.transport()
    for turn in range(3):
        await asyncio.gather(*(transport.send(commands(f"{turn}-{number}")) for number in range(8)))
        connection = transport._link._reconnection.current
        publisher = transport._publisher
        assert connection is not None
        assert publisher is not None
        assert len(connection.channels) == 1
        await publisher.close()
    assert len(await all_that_waits(broker)) == 3 * 8


async def test_what_is_being_given_back_is_given_back_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loop releases what it could not acknowledge, while another gives back what is left."""
    transport = await broker.transport()
    await transport.send(commands("a", "b", "c"))
    patient = PatientTransport(transport)
    taken = await patient.receive(3, PATIENCE)
    while len(taken) < 3:
        taken += await patient.receive(3 - len(taken), PATIENCE)

    async def cannot(_receipts: object) -> None:
        raise OutcomeUnknown("cannot acknowledge")

    with monkeypatch.context() as patched:
        patched.setattr(transport._inbox, "settle", cannot)
        with pytest.raises(OutcomeUnknown):
            await patient.ack(taken)
    await asyncio.gather(patient.release(taken), patient.give_back())
    assert patient.left == ()
    assert await all_that_waits(broker) == ["a", "b", "c"]


async def test_a_receive_that_begins_while_the_consumer_is_cancelled_has_another_made(broker: Broker) -> None:
    """It would wait for nothing, and the message for the next receive."""
    transport = await broker.transport()
    inbox = transport._inbox
    assert await transport.receive(1, 0.0) == ()
    async with inbox._settling:  # cancelling a consumer waits for acknowledgements
        stopping = asyncio.create_task(inbox._stop_consuming())
        receiving = asyncio.create_task(transport.receive(1, PATIENCE))
        async with asyncio.timeout(PATIENCE):
            while not (inbox._wanted and inbox._changing.locked()):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0)
            for _ in range(10):  # turns of the loop, in which it sees a consumer that is still there
                await asyncio.sleep(0)
    await stopping
    await transport.send(commands("late"))
    async with asyncio.timeout(PATIENCE / 2):  # at the end of its patience it would look for a consumer
        assert ids(await receiving) == ["late"]
