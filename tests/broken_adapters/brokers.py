"""RabbitMQ transports that are wrong about full queues and about deleted ones. Each replaces one function of the adapter."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceonly.adapters.rabbitmq import topology
from onceonly.adapters.rabbitmq.decoding import ConsumedMessage
from onceonly.adapters.rabbitmq.link import shielded
from onceonly.adapters.rabbitmq.names import TopologyNames, command
from onceonly.adapters.rabbitmq.publishing import Confirmation, PublishOutcome, PublishRequest
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport

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

    async def declare_inbox(channel: Any, names: TopologyNames, endpoint: str) -> str:
        inbox = names.inbox(endpoint)
        await shielded(channel.exchange_declare(inbox, exchange_type="fanout", durable=True))
        await shielded(channel.queue_bind(names.queue(endpoint), inbox))
        await shielded(channel.exchange_bind(inbox, names.due, f"#.{command(endpoint)}"))
        return inbox

    patch.setattr(topology, "_AT_LEAST_ONCE", {})
    patch.setattr(topology, "_declare_inbox", declare_inbox)
