"""What SQS and SNS say under load and in trouble, and the emulator never does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from onceonly.adapters.aws.sqs.address import MOST_BYTES, read_sqs
from onceonly.adapters.aws.sqs.batches import MOST_TOPIC_BYTES, SqsOutgoing, Target, send_all
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.inbox import SqsReceipt
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.adapters.aws.sqs.wire import write
from onceonly.model.errors import CommitFailed, OutcomeUnknown, QueueMissing, RetryableError, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.queues.destinations import CopyOutcome
from onceonly_conformance.clock import ManualClock
from tests.adapters.aws.scripted_service import Asked, Say, refuse, say_json, standing_in
from tests.adapters.aws.sqs.harness import PATIENCE, commands, message

QUEUE = "http://queues/1/shop"


class Service:
    """A queue with ten messages at most. `answers` has what it says to an operation instead."""

    def __init__(self) -> None:
        self.answers: dict[str, Say] = {}
        self.asked: list[Asked] = []

    def __call__(self, asked: Asked) -> Say:
        """Answer."""
        self.asked.append(asked)
        if asked.operation in self.answers:
            return self.answers[asked.operation]
        match asked.operation:
            case "GetQueueUrl":
                return say_json(200, {"QueueUrl": QUEUE})
            case "ReceiveMessage":
                content = write((("ce-id", "m1"),), b"{}")
                found = {"MessageId": "i", "ReceiptHandle": "h1", "Body": content.body, "MessageAttributes": content.attributes}
                return say_json(200, {"Messages": [found]})
        return say_json(200, {"Successful": [{"Id": each["Id"]} for each in asked.json["Entries"]], "Failed": []})

    def entries(self, operation: str) -> list[list[dict[str, Any]]]:
        """Return the entries of each request."""
        return [asked.json["Entries"] for asked in self.asked if asked.operation == operation]


@asynccontextmanager
async def using(service: Service, options: str = "") -> AsyncIterator[SqsTransport]:
    """Open a transport on it."""
    async with standing_in(service) as (endpoint, _):
        link = await SqsLink.open(read_sqs(f"sqs://test:test@eu-central-1?endpoint={endpoint}&timeout=5{options}"))
        transport = SqsTransport(link, "shop", clock=ManualClock())
        try:
            yield transport
        finally:
            await transport.close()
            await link.close()


def failed(number: int, code: str, *, fault: bool) -> dict[str, object]:
    """Make an entry that was not carried out."""
    return {"Id": str(number), "Code": code, "SenderFault": fault, "Message": "told so"}


async def test_each_entry_of_a_batch_has_an_answer_of_its_own() -> None:
    """Also one that the service forgot."""
    service = Service()
    entries = [
        failed(1, "InvalidMessageContents", fault=True),
        failed(2, "InternalError", fault=False),
        failed(3, "RequestThrottled", fault=True),
        failed(4, "AWS.SimpleQueueService.InvalidParameterValue", fault=True),
    ]
    service.answers["SendMessageBatch"] = say_json(200, {"Successful": [{"Id": "0"}], "Failed": entries})
    async with using(service) as transport:
        answers = await transport.send(commands(*"abcdef"))
    taken, refused, unknown = Answer.TAKEN, Answer.REFUSED, Answer.UNKNOWN
    assert answers == (taken, refused, unknown, unknown, refused, unknown)


@pytest.mark.parametrize("code", ["RequestThrottled", "ThrottlingException", "OverLimit"])
async def test_throttling_is_definite_and_tried_again(code: str) -> None:
    """Nothing was sent, so nothing is in doubt, and no message is refused."""
    service = Service()
    service.answers["SendMessageBatch"] = service.answers["ReceiveMessage"] = refuse(code)
    async with using(service) as transport:
        with pytest.raises(CommitFailed, match=code):
            await transport.send(commands("m1"))
        with pytest.raises(CommitFailed, match=code):
            await transport.receive(1, 0)


async def test_a_queue_that_cannot_be_looked_up_fails_no_messages_to_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are sent again. The reason is logged once, and raised where there are no others."""

    class Guarded(Service):
        """Lets nobody look for one queue."""

        def __call__(self, asked: Asked) -> Say:
            """Answer."""
            is_guarded = asked.operation == "GetQueueUrl" and "audit" in asked.json["QueueName"]
            return refuse("AccessDeniedException", 403) if is_guarded else super().__call__(asked)

    async with using(Guarded()) as transport:
        sends = [*commands("m1"), *commands("a1", to="audit"), *commands("m2")]
        for _ in range(2):
            assert await transport.send(sends) == (Answer.TAKEN, Answer.UNKNOWN, Answer.TAKEN)
        assert caplog.text.count("destination cannot be served") == 1
        with pytest.raises(SetupError, match="AccessDenied"):
            await transport.send(commands("a1", to="audit"))


@pytest.mark.parametrize("said", [Say(0), Say(500, b"{}"), Say(200, b"<html>"), say_json(200, {})])
async def test_what_has_no_answer_is_unknown(said: Say) -> None:
    """It may have been stored. The request is not sent a second time."""
    service = Service()
    service.answers["SendMessageBatch"] = said
    async with using(service) as transport:
        assert await transport.send(commands("m1", "m2")) == (Answer.UNKNOWN,) * 2
    assert len(service.entries("SendMessageBatch")) == 1


async def test_one_throttled_request_leaves_the_others_taken() -> None:
    """Its messages are tried again."""
    service = Service()
    throttled = [refuse("RequestThrottled")]
    usual = service.__call__

    def answer(asked: Asked) -> Say:
        return throttled.pop() if asked.operation == "SendMessageBatch" and throttled else usual(asked)

    async with using(cast("Service", answer)) as transport:
        answers = await transport.send(commands(*(f"m{number}" for number in range(30))))
    assert Counter(answers) == {Answer.TAKEN: 20, Answer.UNKNOWN: 10}


async def test_a_queue_that_was_deleted_refuses_commands() -> None:
    """Though its URL is known."""
    service = Service()
    async with using(service) as transport:
        assert await transport.send(commands("m1")) == (Answer.TAKEN,)
        service.answers["SendMessageBatch"] = service.answers["ReceiveMessage"] = refuse("QueueDoesNotExist")
        assert await transport.send(commands(*(f"m{number}" for number in range(11)))) == (Answer.REFUSED,) * 11
        with pytest.raises(QueueMissing, match="topology create"):
            await transport.receive(1, 0)


async def test_missing_rights_are_a_setup_error() -> None:
    """Trying again mends nothing."""
    service = Service()
    service.answers["SendMessageBatch"] = service.answers["ReceiveMessage"] = refuse("AccessDeniedException", 403)
    async with using(service) as transport:
        for call in (transport.send(commands("m1")), transport.receive(1, 0)):
            with pytest.raises(SetupError, match="Grant the permission"):
                await call


async def test_a_batch_that_is_refused_because_of_one_message_is_sent_one_by_one() -> None:
    """So that the others are not refused with it."""
    service = Service()
    usual = service.__call__

    def answer(asked: Asked) -> Say:
        if asked.operation == "SendMessageBatch" and "odd" in asked.body.decode():
            return refuse("InvalidParameterValue")
        return usual(asked)

    async with using(cast("Service", answer)) as transport:
        assert await transport.send(commands("m1", "odd", "m2")) == (Answer.TAKEN, Answer.REFUSED, Answer.TAKEN)


async def test_what_cannot_be_acknowledged_is_told_and_tried_again() -> None:
    """A handle that is not known any more is not a failure: the message comes again, or it is gone."""
    service = Service()
    async with using(service) as transport:
        (delivery,) = await transport.receive(1, 0)
        service.answers["DeleteMessageBatch"] = say_json(200, {"Failed": [failed(0, "InternalError", fault=False)]})
        with pytest.raises(OutcomeUnknown, match="InternalError"):
            await transport.ack([delivery])
        service.answers["DeleteMessageBatch"] = say_json(200, {})
        with pytest.raises(OutcomeUnknown, match="no answer"):
            await transport.ack([delivery])
        service.answers["DeleteMessageBatch"] = say_json(200, {"Failed": [failed(0, "ReceiptHandleIsInvalid", fault=True)]})
        await transport.ack([delivery])
        await transport.ack([delivery])
    assert len(service.entries("DeleteMessageBatch")) == 3


async def test_a_lease_that_cannot_be_renewed_is_given_up() -> None:
    """Then its holder neither deletes nor releases the message: another receiver may hold it."""
    service = Service()
    service.answers["ChangeMessageVisibilityBatch"] = say_json(200, {"Failed": [failed(0, "MessageNotInflight", fault=True)]})
    async with using(service) as transport:
        held = await transport.receive(1, 0)
        await transport.extend(held)
        await transport.ack(held)
        await transport.release(held)
    assert service.entries("DeleteMessageBatch") == service.entries("SendMessageBatch") == []


async def test_a_release_deletes_nothing_before_its_copy_is_confirmed() -> None:
    """The message comes again when its lease ends, or with the next try."""
    service = Service()
    service.answers["SendMessageBatch"] = Say(0)
    async with using(service) as transport:
        held = await transport.receive(1, 0)
        with pytest.raises(RetryableError):
            await transport.release(held)
        assert service.entries("DeleteMessageBatch") == []
        del service.answers["SendMessageBatch"]
        await transport.release(held)
    assert [each["ReceiptHandle"] for each in service.entries("DeleteMessageBatch")[0]] == ["h1"]


async def test_a_hop_of_a_long_delay_deletes_nothing_before_its_copy_is_confirmed() -> None:
    """It is neither delivered early nor lost."""
    service, clock = Service(), ManualClock()
    content = write((("ce-id", "m1"),), b"{}", due=clock.now() + 1_000_001)
    found = {"ReceiptHandle": "h1", "Body": content.body, "MessageAttributes": content.attributes}
    service.answers["ReceiveMessage"] = say_json(200, {"Messages": [found]})
    service.answers["SendMessageBatch"] = say_json(200, {"Failed": [failed(0, "InternalError", fault=False)]})
    async with using(service) as transport:
        assert await transport.receive(1, 0) == ()
        assert service.entries("DeleteMessageBatch") == []
        del service.answers["SendMessageBatch"]
        assert await transport.receive(1, 0) == ()
    operations = [asked.operation for asked in service.asked]
    assert operations[-2:] == ["SendMessageBatch", "DeleteMessageBatch"]
    entry = service.entries("SendMessageBatch")[-1][0]
    assert (entry["DelaySeconds"], entry["MessageAttributes"]) == (900, content.attributes)


async def test_a_hundred_messages_are_ten_requests_side_by_side() -> None:
    """To send, to acknowledge and to receive: each request is answered when all ten have come."""
    barrier = asyncio.Barrier(10)

    async def done(**request: Any) -> dict[str, object]:
        await barrier.wait()
        return {"Successful": [{"Id": each["Id"]} for each in request["Entries"]]}

    async def receive(**request: Any) -> dict[str, object]:
        await barrier.wait()
        return {"Messages": [{"ReceiptHandle": f"{object()}", "Body": "{}"} for _ in range(request["MaxNumberOfMessages"])]}

    async with using(Service()) as transport:
        link = transport._link
        link.sqs = SimpleNamespace(send_message_batch=done, delete_message_batch=done, get_queue_url=link.sqs.get_queue_url)
        link.polls = SimpleNamespace(receive_message=receive)
        transport._inbox._has_many = True  # as the last call has found
        names = [f"m{number}" for number in range(100)]
        async with asyncio.timeout(PATIENCE):
            assert await transport.send(commands(*names)) == (Answer.TAKEN,) * 100
            held = await transport.receive(100, 1)
            assert len(held) == 100
            transport._inbox.leases._ends = dict.fromkeys(names, 1 << 60)
            await transport.ack([replace(each, receipt=SqsReceipt(handle)) for each, handle in zip(held, names, strict=True)])


@pytest.mark.parametrize(("target", "most"), [(Target(QUEUE), MOST_BYTES), (Target("arn:aws:sns:r:1:t"), MOST_TOPIC_BYTES)])
async def test_no_request_is_larger_than_the_service_takes(target: Target, most: int) -> None:
    """Ten messages of the largest size are ten requests."""
    sizes: list[int] = []

    async def done(**request: Any) -> dict[str, object]:
        (entries,) = [value for value in request.values() if isinstance(value, list)]
        attributes = [pair for each in entries for pair in each["MessageAttributes"].items()]
        sizes.append(
            sum(len(each.get("MessageBody") or each.get("Message")) for each in entries)
            + sum(len(name) + len("String") + len(value["StringValue"]) for name, value in attributes)
        )
        return {"Successful": [{"Id": each["Id"]} for each in entries]}

    async with using(Service()) as transport:
        link = transport._link
        link.sqs = link.sns = SimpleNamespace(send_message_batch=done, publish_batch=done)
        contents = [write((("x", "y"),), b"b" * size) for size in (most // 3, most // 3, 1, most - 100, most // 3, 2)]
        assert await send_all(link, target, [SqsOutgoing(each) for each in contents]) == [CopyOutcome.TAKEN] * 6
    assert max(sizes) <= most
    assert len(sizes) == 3


async def test_a_fifo_queue_gets_the_messages_of_a_group_in_order() -> None:
    """In one request after the other. After one without an answer the rest is not sent: it would overtake."""
    service = Service()
    keyed = [Send(message=message(f"m{number}", extensions=(("partitionkey", "c7"),)), to="shop") for number in range(25)]
    async with using(service, "&fifo=true") as transport:
        assert await transport.send(keyed) == (Answer.TAKEN,) * 25
        sent = [entry for entries in service.entries("SendMessageBatch") for entry in entries]
        assert [
            f'"m{number}"' in entry["MessageAttributes"]["onceonly-headers"]["StringValue"] for number, entry in enumerate(sent)
        ]
        assert {entry["MessageGroupId"] for entry in sent} == {"c7"}
        service.asked.clear()
        service.answers["SendMessageBatch"] = say_json(200, {"Successful": [{"Id": "0"}]})
        answers = await transport.send(keyed)
    assert answers == (Answer.TAKEN, *[Answer.UNKNOWN] * 24)
    assert len(service.entries("SendMessageBatch")) == 1


async def test_no_deduplication_id_is_ever_used_twice() -> None:
    """SQS would drop a retry copy, a release, a repeated dispatch or what was delayed."""
    service = Service()
    async with using(service, "&fifo=true") as transport:
        for _ in range(2):
            await transport.send(commands("m1", "m1"))
            await transport.release(await transport.receive(1, 0))
    sent = [entry for entries in service.entries("SendMessageBatch") for entry in entries]
    assert len({entry["MessageDeduplicationId"] for entry in sent}) == len(sent) >= 6
    assert len({entry["MessageGroupId"] for entry in sent}) == len(sent)
    assert all("DelaySeconds" not in entry for entry in sent)


async def test_a_waiting_request_is_no_longer_than_the_receiver_waits() -> None:
    """Rounded up to a second, and 20 at most."""
    service = Service()
    service.answers["ReceiveMessage"] = say_json(200, {})
    async with using(service) as transport:
        for wait in (0, 0.5):
            await transport.receive(1, wait)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await transport.receive(1, 90)
    waits = [asked.json["WaitTimeSeconds"] for asked in service.asked if asked.operation == "ReceiveMessage"]
    assert waits[0] == 0
    assert set(waits) == {0, 1, 20}
