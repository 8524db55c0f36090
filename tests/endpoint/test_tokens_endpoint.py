"""An endpoint with tokens: what may come, what may be published, and who must be declared."""

from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import Context, Endpoint, Off, SetupError, Tokens
from onceonly.endpoint.host import host_of
from onceonly.model.message import FailureKind
from tests.endpoint.harness import STILL, effects, endpoint, failure, incoming, read, unreadable
from tests.endpoint.harness import delivery as arrives

CLOUD = {"ce_id": "1", "ce_source": "web", "ce_type": "Order"}


@dataclass
class Order:
    """A message."""

    id: str


@dataclass
class Placed:
    """An event."""

    id: str


def shop(**subscribers: Any) -> Endpoint:
    """Make an endpoint with tokens whose handler sends one command and publishes one event."""
    made = endpoint(deduplication=Tokens("dynamodb://eu/tokens", subscribers=subscribers))

    @made.handler
    async def take(order: Order, context: Context) -> None:
        """Send and publish."""
        context.send(order, to="stock")
        context.publish(Placed(order.id))

    return made


def test_a_message_without_a_token_is_unreadable() -> None:
    """Its reason says from whom it must come; its identity is known."""
    found = unreadable(shop(), arrives(**CLOUD))
    assert "has no token" in found.reason
    assert "deduplication=Tokens" in found.reason
    assert found.message is not None
    assert found.message.id == "1"


def test_a_message_with_a_token_is_read() -> None:
    """Whether it is live is the admission's to say."""
    found = read(shop(), arrives(**(CLOUD | {"ce_token": "t1"})))
    assert found.extension("token") == "t1"


def test_elsewhere_no_token_is_needed() -> None:
    """Only tokens ask for tokens."""
    made = endpoint(deduplication=Off())
    made.handler(shop()._registered.handlers[0].function.call)
    assert read(made, arrives(**CLOUD)).extension("token") == ""


async def test_an_event_that_nobody_declared_cannot_be_published() -> None:
    """Its token would be issued for nobody; told with what to write."""
    failed = await failure(shop(Paid=["billing"]), incoming(type_="Order"))
    assert failed.kind is FailureKind.REJECTED
    assert "cannot publish Placed" in failed.reason
    assert "Tokens(subscribers={'Placed': [...]})" in failed.reason


async def test_a_declared_event_can_be_published_also_for_nobody() -> None:
    """Commands need no declaration: they name their endpoint."""
    for takers in (["billing"], []):
        sent = await effects(shop(Placed=takers), incoming(type_="Order"))
        assert [send.message.type for send in sent] == ["Order", "Placed"]


def test_an_endpoint_that_takes_an_event_must_be_among_its_subscribers() -> None:
    """Or all that comes of it would be dropped."""
    made = shop(Order=["billing"], Placed=[])
    with pytest.raises(SetupError, match=r"take handles 'Order', and .* lists billing for it: add 'shop' there"):
        host_of(made).handlers(STILL)
    with pytest.raises(SetupError, match="lists no endpoint"):
        shop(Order=[]).topology()
    host_of(shop(Order=["billing", "shop"])).handlers(STILL)
