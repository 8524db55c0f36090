"""Broken parts of the SQS transport fail the rules that they break, on an emulator."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from uuid import UUID

import pytest
from msgspec.structs import replace

from onceonly.adapters.aws.sqs import batches as sqs_batches
from onceonly.adapters.aws.sqs import client as sqs_client
from onceonly.adapters.aws.sqs import topology as sqs_topology
from onceonly.adapters.aws.sqs.inbox import SqsInbox, SqsReceipt
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.adapters.aws.sqs.wire import SqsArrival, SqsContent
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery
from onceonly.queues.deliveries import DueMover
from onceonly_conformance.suite import broken
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.sqs_subjects import SqsSubject

pytestmark = pytest.mark.slow
Patch = pytest.MonkeyPatch


def a_release_is_no_copy(patch: Patch) -> None:
    """The message becomes visible, and its count grows."""

    async def visible(self: SqsTransport, contents: dict[str, SqsContent]) -> None:
        if contents:
            await self._change_leases(tuple(contents), 0)
            self._inbox.leases.settle(contents)

    patch.setattr(SqsTransport, "_copy", visible)


def nothing_is_deleted(patch: Patch) -> None:
    """Neither by an acknowledgement nor by a release."""
    patch.setattr("onceonly.adapters.aws.sqs.transport.delete", _deletes_nothing)


async def _deletes_nothing(*_: object) -> OnceOnlyError | None:
    return None


def what_came_without_a_receiver_is_kept(patch: Patch) -> None:
    """Until the lease ends."""
    patch.setattr(SqsInbox, "_return", lambda *_: None)


def what_is_early_is_delivered(patch: Patch) -> None:
    """As if SQS kept every delay to the millisecond."""
    _read_as(patch, due=0)


def no_delivery_is_a_suspect(patch: Patch) -> None:
    """The count is ignored."""
    _read_as(patch, count=1)


def every_delivery_is_a_suspect(patch: Patch) -> None:
    """The count begins at two."""
    _read_as(patch, count=2)


def _read_as(patch: Patch, **changes: int) -> None:
    usual = sqs_client.read

    def read(message: Any) -> SqsArrival:
        return replace(usual(message), **changes)

    patch.setattr(sqs_client, "read", read)


def leases_never_end(patch: Patch) -> None:
    """A late release sends a copy of what another receiver holds."""

    def holds(_: SqsInbox, receipt: object) -> str:
        return receipt.handle if isinstance(receipt, SqsReceipt) else ""

    patch.setattr(SqsInbox, "holds", holds)


def leases_are_not_renewed(patch: Patch) -> None:
    """Though the receiver believes it."""

    async def extend(self: SqsTransport, deliveries: Sequence[Delivery]) -> None:
        self._inbox.leases.hold(self._held(deliveries))

    patch.setattr(SqsTransport, "extend", extend)


def every_message_has_one_deduplication_id(patch: Patch) -> None:
    """SQS drops all but the first."""
    patch.setattr(sqs_batches, "uuid4", lambda: UUID(int=7))


def delayed_messages_are_not_moved(patch: Patch) -> None:
    """They stay in the queue for delays."""
    patch.setattr(DueMover, "begin", lambda _: None)


def unsubscribing_does_nothing(patch: Patch) -> None:
    """The subscription stays."""

    async def unsubscribe(*_: object) -> None:
        return

    patch.setattr(sqs_topology, "_unsubscribe", unsubscribe)


def events_have_an_envelope(patch: Patch) -> None:
    """Raw delivery is off."""
    usual = sqs_topology._subscribe

    async def subscribe(link: Any, kind: str, queue: str) -> None:
        await usual(link, kind, queue)
        for each in await sqs_topology.subscribers(link, kind):
            await link.sns.set_subscription_attributes(
                SubscriptionArn=each["SubscriptionArn"], AttributeName="RawMessageDelivery", AttributeValue="false"
            )

    patch.setattr(sqs_topology, "_subscribe", subscribe)


def a_batch_has_nine_messages(patch: Patch) -> None:
    """The tenth of each is forgotten."""
    usual: Callable[..., Awaitable[Any]] = sqs_batches._request

    async def request(link: Any, target: Any, messages: Sequence[Any]) -> Any:
        await usual(link, target, messages[:9])
        return {"Successful": [{"Id": str(index)} for index in range(len(messages))]}

    patch.setattr(sqs_batches, "_request", request)


BITES: list[tuple[Callable[[Patch], None], str, bool]] = [
    (a_release_is_no_copy, "a_released_delivery_comes_again_at_once_and_is_no_suspect", False),
    (a_release_is_no_copy, "releasing_a_suspect_clears_it", False),
    (nothing_is_deleted, "acking_twice_is_harmless", False),
    (nothing_is_deleted, "a_message_arrives_once_when_it_is_acked", False),
    (what_came_without_a_receiver_is_kept, "a_cancelled_receive_loses_nothing", False),
    (what_is_early_is_delivered, "a_delayed_message_is_not_delivered_before_it_is_due", False),
    (no_delivery_is_a_suspect, "a_delivery_whose_lease_ended_comes_again_as_a_suspect", False),
    (every_delivery_is_a_suspect, "a_first_delivery_is_no_suspect", False),
    (leases_never_end, "a_late_release_does_not_take_the_delivery_of_another", False),
    (leases_are_not_renewed, "extending_keeps_a_delivery", False),
    (every_message_has_one_deduplication_id, "the_same_id_sent_twice_arrives_twice", True),
    (every_message_has_one_deduplication_id, "a_released_message_arrives_as_it_was_sent", True),
    (delayed_messages_are_not_moved, "a_delayed_message_is_delivered_when_it_is_due", True),
    (unsubscribing_does_nothing, "what_an_endpoint_names_as_gone_is_unsubscribed", False),
    (events_have_an_envelope, "an_event_goes_to_every_endpoint_that_subscribed", False),
    (a_batch_has_nine_messages, "very_many_messages_are_sent_received_and_settled_at_once", False),
]


class Brittle(TransportSuite):
    """The suite on SQS. It does not wait long for a message that is lost."""

    patience: ClassVar[float] = 2.0
    quiet: ClassVar[float] = 0.6

    def __init__(self, endpoint: str, *, lease: int, fifo: bool) -> None:
        self._options: dict[str, Any] = {"lease": lease, "fifo": fifo}
        self._endpoint = endpoint

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[SqsSubject]:
        """Open a prefix of its own."""
        async with SqsSubject.open(self._endpoint, **self._options) as subject:
            yield subject


@pytest.mark.parametrize("bite", BITES, ids=lambda bite: f"{bite[0].__name__}-{bite[1]}")
async def test_a_broken_part_is_caught_by_the_rule_that_it_breaks(
    bite: tuple[Callable[[Patch], None], str, bool], ministack_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/conformance/test_sqs.py` shows that the parts themselves pass."""
    change, rule, fifo = bite
    change(monkeypatch)
    lease = 4 if rule == "extending_keeps_a_delivery" else 3600
    assert await broken(Brittle(ministack_endpoint, lease=lease, fifo=fifo), f"test_{rule}")
