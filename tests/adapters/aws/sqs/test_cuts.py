"""Connections to SQS that end before a request arrives, or before its answer does."""

from collections.abc import AsyncIterator

import pytest

from onceonly.model.errors import RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly_conformance.documents_subject import Moment
from tests.adapters.aws.sqs.harness import EVENT, Broker, commands, ids, message, opened, take
from tests.servers.cutting_http import Request, cutting_http

TARGET = "AmazonSQS."


@pytest.fixture
async def broker(ministack_endpoint: str) -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened(ministack_endpoint) as place:
        yield place


def is_write(request: Request) -> bool:
    """Tell whether a request sends or deletes messages; SNS has no header that says so."""
    operation = request.headers.get("x-amz-target", "").removeprefix(TARGET)
    return operation in {"SendMessageBatch", "DeleteMessageBatch", ""} and request.method == "POST"


@pytest.mark.parametrize(("moment", "copies"), [("before", 1), ("after", 2)])
async def test_a_command_without_an_answer_is_unknown_and_sent_again(
    broker: Broker, ministack_endpoint: str, moment: Moment, copies: int
) -> None:
    """The adapter sends it once. The sender repeats it, and deduplication drops the second copy."""
    async with cutting_http(ministack_endpoint, is_write) as (cutter, place):
        transport = await broker.transport(url=broker.url.replace(ministack_endpoint, place))
        cutter.cut = moment
        assert await transport.send(commands("m1")) == (Answer.UNKNOWN,)
        assert cutter.writes == 1
        assert await transport.send(commands("m1")) == (Answer.TAKEN,)
        assert ids(await take(transport, copies)) == ["m1"] * copies
        assert await transport.receive(1, 0) == ()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_event_without_an_answer_is_unknown(broker: Broker, ministack_endpoint: str, moment: Moment) -> None:
    """Whether SNS has it or not."""
    async with cutting_http(ministack_endpoint, is_write) as (cutter, place):
        transport = await broker.transport(url=broker.url.replace(ministack_endpoint, place))
        await transport._link.topic(EVENT)  # which asks for the number of the account
        cutter.cut = moment
        assert await transport.send([Send(message=message())]) == (Answer.UNKNOWN,)
        assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
        assert set(ids(await take(transport, 1 if moment == "before" else 2))) == {"m1"}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_acknowledgement_without_an_answer_is_told(broker: Broker, ministack_endpoint: str, moment: Moment) -> None:
    """It may be repeated, also where it was carried out."""
    async with cutting_http(ministack_endpoint, is_write) as (cutter, place):
        transport = await broker.transport(url=broker.url.replace(ministack_endpoint, place))
        await transport.send(commands("m1"))
        held = await take(transport, 1)
        cutter.cut = moment
        with pytest.raises(RetryableError):
            await transport.ack(held)
        await transport.ack(held)
        depth = await transport.depth("shop")
        assert (depth.waiting, depth.held) == (0, 0)
