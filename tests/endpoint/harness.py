"""What the endpoint's tests share: deliveries as they come, and one handler's run against a memory store."""

from typing import Any

import msgspec

from onceonly import Endpoint, Retry
from onceonly.adapters.memory.store import MemoryStore
from onceonly.adapters.memory.world import Live
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import arrival
from onceonly.model.errors import HandlerFailed
from onceonly.model.message import Delivery, Failure, Message, Send, Unreadable
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Environment

NOW = 1_750_000_000_000


class StandingClock:
    """A clock that stands still."""

    def now(self) -> int:
        """Return the one instant."""
        return NOW


class FixedRandomSource:
    """Chance without surprise."""

    def fraction(self) -> float:
        """Return zero."""
        return 0.0


STILL = Environment(clock=StandingClock(), random=FixedRandomSource())


def endpoint(**settings: Any) -> Endpoint:
    """Make an endpoint on memory adapters."""
    return Endpoint(
        **{"name": "shop", "store": "memory://test", "transport": "memory://test", "retry": Retry(jitter=0)} | settings
    )


def incoming(body: object = None, type_: str = "Order", **attributes: str) -> Message:
    """Make a message; `attributes` are extensions, or one of the core ones."""
    core = {name: attributes.pop(name) for name in ("id", "source") if name in attributes}
    encoded = body if isinstance(body, bytes) else msgspec.json.encode({"id": "1"} if body is None else body)
    extensions = tuple(attributes.items())
    return Message(**{"id": "m1", "source": "web"} | core, type=type_, body=encoded, extensions=extensions)


def delivery(body: bytes = b'{"id":"1"}', *, attempts: int = 0, queue: str = "shop", **headers: str) -> Delivery:
    """Make a delivery; underscores in header names stand for dashes."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    copies = (("ce-onceonlyattempts", str(attempts)),) if attempts else ()
    return arrival(1, queue, (*pairs, *copies), body, suspect=False)


async def resources(*, isolated: bool = False) -> Resources:
    """Open a unit of a memory store."""
    unit = await MemoryStore(Live(), "shop").begin([], isolated=isolated)
    return unit.resources


async def effects(shop: Endpoint, message: Message | None = None, offered: Resources | None = None) -> tuple[Send, ...]:
    """Run the handler of a message and give what it captured."""
    decision = await host_of(shop).handlers(STILL).handle(message or incoming(), offered or await resources())
    return decision.effects


async def failure(shop: Endpoint, message: Message | None = None, offered: Resources | None = None) -> Failure:
    """Run the handler of a message, which must fail, and say how."""
    try:
        await effects(shop, message, offered)
    except HandlerFailed as error:
        return error.failure
    raise AssertionError("the handler did not fail")


def read(shop: Endpoint, arrived: Delivery, **limits: int) -> Message:
    """Read a delivery that is readable."""
    found = host_of(shop).handlers(STILL, **limits).read(arrived)
    assert isinstance(found, Message), found
    return found


def unreadable(shop: Endpoint, arrived: Delivery, **limits: int) -> Unreadable:
    """Read a delivery that is not."""
    found = host_of(shop).handlers(STILL, **limits).read(arrived)
    assert isinstance(found, Unreadable), found
    return found
