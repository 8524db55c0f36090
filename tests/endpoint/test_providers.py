"""What providers make, for how long it lives, and that it is cleaned up."""

# ruff: noqa: ARG001 - handlers under test need not use what they ask for

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from onceonly import Context, Endpoint
from onceonly.adapters.memory.store import Notebook
from onceonly.endpoint.host import host_of
from onceonly.model.message import FailureKind
from onceonly.ports.bundle import Ports
from tests.endpoint.harness import NOW, STILL, endpoint, failure, incoming, resources


@dataclass
class Order:
    """A message."""

    id: str


class Bank:
    """Made once for the process."""


class Mailer:
    """Made for each message."""

    def __init__(self, bank: Bank, notes: Notebook, id_: str) -> None:
        """Keep what it is made of."""
        self.bank, self.notes, self.id = bank, notes, id_


class Journal(list[str]):
    """What happened, in order."""


def shop_with_providers(journal: Journal) -> Endpoint:
    """Make an endpoint whose providers write down when they begin and end."""

    @asynccontextmanager
    async def lifespan(shop: Endpoint) -> AsyncIterator[None]:
        journal.append(f"{shop.name} starts")
        try:
            yield
        finally:
            journal.append(f"{shop.name} ends")

    shop = endpoint(lifespan=lifespan)

    @shop.provide(scope="message")
    def make_mailer(bank: Bank, notes: Notebook, context: Context) -> Iterator[Mailer]:
        journal.append("mailer")
        yield Mailer(bank, notes, context.message.id)
        journal.append("no mailer")

    @shop.provide
    async def make_bank(name: str) -> AsyncIterator[Bank]:
        journal.append(f"bank {name}")
        try:
            yield Bank()
        finally:
            journal.append("no bank")

    @shop.provide
    async def make_name() -> str:
        await asyncio.sleep(0)
        return "of us"

    @shop.handler
    async def place(order: Order, mailer: Mailer, bank: Bank) -> None:
        assert mailer.bank is bank
        mailer.notes.write(mailer.id, order.id)
        journal.append("handled")

    @shop.handler(type="sync")
    def place_sync(order: Order, mailer: Mailer, bank: Bank) -> None:
        assert mailer.bank is bank
        journal.append("handled")

    return shop


async def handle(ports: Ports, type_: str = "Order") -> None:
    """Handle one message."""
    await ports.handlers.handle(incoming(type_=type_), await resources())


@pytest.mark.parametrize("type_", ["Order", "sync"])
async def test_providers_live_for_the_process_or_for_a_message(type_: str) -> None:
    """In the order they need each other, ended in the opposite one."""
    journal = Journal()
    async with host_of(shop_with_providers(journal)).opened() as ports:
        await handle(ports, type_)
        await handle(ports, type_)
    for_a_message = ["mailer", "handled", "no mailer"]
    assert journal == ["shop starts", "bank of us", *for_a_message, *for_a_message, "no bank", "shop ends"]


async def test_an_endpoint_can_run_twice_at_once() -> None:
    """What was made belongs to the run, not to the endpoint."""
    journal = Journal()
    shop = shop_with_providers(journal)
    async with host_of(shop).opened() as first:
        async with shop.opened():
            pass
        await handle(first)
    assert journal.count("bank of us") == journal.count("no bank") == 2


async def test_a_provider_that_fails_at_start_is_raised_at_start() -> None:
    """After what began before it has ended."""
    journal = Journal()
    shop = shop_with_providers(journal)

    @shop.provide
    async def no_teller(bank: Bank) -> bytes:
        raise OSError("no teller")

    with pytest.raises(OSError, match="no teller"):
        async with shop.opened():
            pass
    assert journal == ["shop starts", "bank of us", "no bank", "shop ends"]


async def test_a_provider_for_a_message_that_fails_is_that_messages_failure() -> None:
    """It is part of its handling."""
    shop = endpoint()

    @shop.provide(scope="message")
    def broken() -> Bank:
        raise ValueError("no bank today")

    @shop.handler
    async def place(order: Order, bank: Bank) -> None:
        """Do nothing."""

    found = await failure(shop)
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "ValueError: no bank today")


async def test_a_clean_up_that_swallows_the_error_hides_no_failure() -> None:
    """Half of a handler's work must not be committed."""
    shop, journal = endpoint(), Journal()

    @shop.provide(scope="message")
    async def careless() -> AsyncIterator[Bank]:
        try:
            yield Bank()
        except ValueError:
            journal.append("swallowed")

    @shop.handler
    async def place(order: Order, bank: Bank) -> None:
        raise ValueError("half done")

    assert (await failure(shop)).reason == "ValueError: half done"
    assert journal == ["swallowed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
async def test_what_a_clean_up_raises_ends_no_process(error: BaseException) -> None:
    """It is the message's own failure, like whatever its handler raises."""
    shop = endpoint()

    @shop.provide(scope="message")
    async def broken() -> AsyncIterator[Bank]:
        yield Bank()
        raise error

    @shop.handler
    async def place(order: Order, bank: Bank) -> None:
        """Do nothing."""

    found = await failure(shop)
    assert found.kind is FailureKind.EXCEPTION
    assert found.reason.startswith(type(error).__name__)


async def test_providers_see_the_endpoints_time() -> None:
    """The context that a provider gets is the handler's own."""
    shop, sent = endpoint(), []

    @shop.provide(scope="message")
    async def announce(context: Context) -> Bank:
        context.publish({"a": 1}, type="announced")
        return Bank()

    @shop.handler
    async def place(order: Order, bank: Bank) -> None:
        """Do nothing."""

    sent += (await host_of(shop).handlers(STILL).handle(incoming(), await resources())).effects
    assert [send.message.instant for send in sent] == [NOW]
