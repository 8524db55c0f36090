"""Message types that are declared as commands or events."""

from dataclasses import dataclass

import pytest

from onceonly import Endpoint, message
from onceonly.endpoint.message_builder import MessageBuilder, Origin
from onceonly.model.errors import InvalidEffect
from onceonly.model.identity import Identity
from onceonly.ports.transport import Topology
from tests.cli.terminal import Terminal


@message("place-order", kind="command")
@dataclass
class PlaceOrder:
    """A command."""

    id: str = "1"


@message("order-placed", kind="event")
@dataclass
class OrderPlaced:
    """An event."""

    id: str = "1"


@message("both")
@dataclass
class Both:
    """Neither."""

    id: str = "1"


def seal(body: object, to: str) -> None:
    """Make a message, as handlers and transactions do."""
    builder = MessageBuilder("shop", max_body=1000)
    builder.build(body, to, {}, Origin(Identity("shop", "1"), 0), now=1)


@pytest.mark.parametrize(
    ("body", "to", "words"),
    [
        (PlaceOrder(), "", "cannot publish place-order: its class is declared as a command. Send it"),
        (OrderPlaced(), "shop", "cannot send order-placed: its class is declared as an event. Publish it"),
    ],
)
def test_the_other_way_is_refused_before_the_commit(body: object, to: str, words: str) -> None:
    """When the message is captured."""
    with pytest.raises(InvalidEffect, match=words):
        seal(body, to)


@pytest.mark.parametrize(("body", "to"), [(PlaceOrder(), "shop"), (OrderPlaced(), ""), (Both(), "shop"), (Both(), "")])
def test_the_declared_way_is_taken(body: object, to: str) -> None:
    """Without a declaration, both ways."""
    seal(body, to)


@pytest.mark.parametrize(("kind", "word"), [("commmand", "must be .command. or .event."), ("", "must be")])
def test_another_kind_is_refused(kind: str, word: str) -> None:
    """When the class is defined."""
    with pytest.raises(ValueError, match=word):
        message("x", kind=kind)  # type: ignore[arg-type]


PROGRAM = """
from dataclasses import dataclass
from onceonly import Endpoint, message

shop = Endpoint("shop", store="sqlite:///s.db", transport="sqlite:///q.db")


@message("place-order"{kind})
@dataclass
class PlaceOrder:
    id: str


@message("order-placed", kind="event")
@dataclass
class OrderPlaced:
    id: str


@shop.handler
async def place(order: PlaceOrder) -> None:
    pass


@shop.handler
async def placed(order: OrderPlaced) -> None:
    pass
"""


def test_a_command_has_no_subscription_and_an_old_one_ends_by_command(onceonly: Terminal) -> None:
    """The declaration alone removes nothing; `status` shows what stays."""
    program = onceonly.folder / "kinds.py"
    program.write_text(PROGRAM.format(kind=""))
    assert onceonly("schema", "create", "kinds:shop").code == 0
    assert onceonly("topology", "create", "kinds:shop").code == 0
    program.write_text(PROGRAM.format(kind=', kind="command"'))
    created = onceonly("topology", "create", "kinds:shop", "--json")
    assert created.answer == [{"endpoint": "shop", "events": ["order-placed"], "commands": ["place-order"]}]
    (status,) = onceonly("status", "kinds:shop", "--json").answer
    assert status["superfluous"] == ["place-order"]
    assert "`onceonly topology unsubscribe" in onceonly("status", "kinds:shop").err
    assert onceonly("topology", "unsubscribe", "kinds:shop", "--type", "place-order").code == 0
    (status,) = onceonly("status", "kinds:shop", "--json").answer
    assert "superfluous" not in status


def test_a_type_that_is_no_longer_handled_is_superfluous(onceonly: Terminal) -> None:
    """Until the subscription ends. With invalid handlers the types are unknown, so nothing is shown."""
    program = onceonly.folder / "kinds.py"
    program.write_text(PROGRAM.format(kind=""))
    assert onceonly("schema", "create", "kinds:shop").code == 0
    assert onceonly("topology", "create", "kinds:shop").code == 0
    assert "superfluous" not in onceonly("status", "kinds:shop", "--json").answer[0]
    fewer = PROGRAM.format(kind="").partition("@shop.handler\nasync def placed")[0]
    program.write_text(fewer)
    assert onceonly("status", "kinds:shop", "--json").answer[0]["superfluous"] == ["order-placed"]
    assert "is subscribed to order-placed, which it does not handle as an event" in onceonly("status", "kinds:shop").err
    program.write_text(fewer + "\n\n@shop.handler\nasync def unready(placed: OrderPlaced, amount: int) -> None: ...\n")
    (status,) = onceonly("status", "kinds:shop", "--json").answer
    assert "superfluous" not in status
    assert "unready" in status["problem"]


def test_an_endpoint_of_commands_has_a_queue() -> None:
    """It subscribes to nothing."""
    shop = Endpoint("shop", store="sqlite://", transport="memory://")

    @shop.handler
    async def place(order: PlaceOrder) -> None: ...

    assert shop.topology() == Topology(endpoint="shop", commands=("place-order",))
