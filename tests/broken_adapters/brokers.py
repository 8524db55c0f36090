"""RabbitMQ transports that are wrong about full and deleted queues, or about connections that break.

Each replaces one function of the adapter.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from onceonly.adapters.rabbitmq import topology
from onceonly.adapters.rabbitmq.frames import ConsumedMessage
from onceonly.adapters.rabbitmq.inbox import RabbitMQInbox
from onceonly.adapters.rabbitmq.link import Channel, shielded, translated
from onceonly.adapters.rabbitmq.names import RabbitMQNames, command
from onceonly.adapters.rabbitmq.publisher import Confirmation, PublishOutcome, PublishRequest
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import RetryableError
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth

Break = Callable[[pytest.MonkeyPatch], None]


def takes_nacks_for_acks(patch: pytest.MonkeyPatch) -> None:
    """Report a message as taken although the broker refused it by a negative confirm."""
    answer = Confirmation._answer

    def hopeful(confirmation: Confirmation, outcome: PublishOutcome) -> None:
        answer(confirmation, PublishOutcome.CONFIRMED if outcome is PublishOutcome.UNKNOWN else outcome)

    patch.setattr(Confirmation, "_answer", hopeful)


def settles_what_has_no_copy(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge a released delivery although its copy was refused."""

    async def exchange(transport: RabbitMQTransport, copies: Sequence[tuple[ConsumedMessage, PublishRequest | None]]) -> None:
        await transport._publish([parcel for _, parcel in copies if parcel])
        await transport._inbox.settle([transport._inbox.receipt(message) for message, _ in copies])

    patch.setattr(RabbitMQTransport, "_exchange", exchange)


def drops_what_is_due_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Route due messages to the endpoint's queue alone, at most once."""

    async def declare_inbox(channel: Any, names: RabbitMQNames, endpoint: str) -> str:
        inbox = names.inbox(endpoint)
        await shielded(channel.exchange_declare(inbox, exchange_type="fanout", durable=True))
        await shielded(channel.queue_bind(names.queue(endpoint), inbox))
        await shielded(channel.exchange_bind(inbox, names.due, f"#.{command(endpoint)}"))
        return inbox

    patch.setattr(topology, "_AT_LEAST_ONCE", {})
    patch.setattr(topology, "_declare_inbox", declare_inbox)


def takes_what_is_returned(patch: pytest.MonkeyPatch) -> None:
    """Report a command as taken although the broker returned it."""
    patch.setattr(RabbitMQTransport, "_answer", lambda *_: Answer.TAKEN)


def trusts_its_consumer(patch: pytest.MonkeyPatch) -> None:
    """Ignore that the broker has ended a consumer."""
    patch.setattr(RabbitMQInbox, "_cancelled", lambda *_: None)


def hides_that_a_declaration_failed(patch: pytest.MonkeyPatch) -> None:
    """Return from `declare` as if everything was declared."""
    declare = topology.declare

    async def hopeful(*arguments: Any) -> None:
        with suppress(RetryableError):
            await declare(*arguments)

    patch.setattr(topology, "declare", hopeful)


def takes_silence_for_a_confirm(patch: pytest.MonkeyPatch) -> None:
    """Report a message as taken although the broker has not answered."""
    begin = Confirmation.__init__

    def confirmed(confirmation: Confirmation, waiting: Any) -> None:
        begin(confirmation, waiting)
        confirmation.outcome = PublishOutcome.CONFIRMED

    patch.setattr(Confirmation, "__init__", confirmed)


def settles_before_it_copies(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge a delivery that is released or put off before its copy is confirmed."""

    async def exchange(transport: RabbitMQTransport, copies: Sequence[tuple[ConsumedMessage, PublishRequest | None]]) -> None:
        await transport._inbox.settle([transport._inbox.receipt(message) for message, _ in copies])
        channel = transport._inbox._channel
        if channel is not None:  # an answer separates the two: in one write a connection would lose both
            async with translated("await an answer"):
                await channel.queue_declare(transport._queue, passive=True)
        await transport._publish([parcel for _, parcel in copies if parcel])

    patch.setattr(RabbitMQTransport, "_exchange", exchange)


def counts_nothing_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    """Report an empty queue when the broker does not answer."""
    depth = RabbitMQTransport.depth

    async def hopeful(transport: RabbitMQTransport, endpoint: str, events: Sequence[str] = ()) -> Depth:
        try:
            return await depth(transport, endpoint, events)
        except RetryableError:
            return Depth(waiting=0, held=0, delayed=0)

    patch.setattr(RabbitMQTransport, "depth", hopeful)


def declares_exchanges_for_one_run_of_the_server(patch: pytest.MonkeyPatch) -> None:
    """Declare exchanges that are not durable."""
    declare = Channel.exchange_declare

    async def transient(channel: Channel, exchange: str, **options: Any) -> Any:
        return await declare(channel, exchange, **options | {"durable": False})

    patch.setattr(Channel, "exchange_declare", transient)


def never_forgets_what_it_declared(patch: pytest.MonkeyPatch) -> None:
    """Keep what is known of the broker when the connection is lost."""
    channel_of = RabbitMQTransport._channel

    async def kept(transport: RabbitMQTransport) -> Channel:
        known = set(transport._known)
        channel = await channel_of(transport)
        transport._known |= known
        return channel

    patch.setattr(RabbitMQTransport, "_channel", kept)
