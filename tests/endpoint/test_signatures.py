"""What a handler's signature may be; everything wrong with all of them is reported at once, before anything runs."""

# ruff: noqa: ARG001 - handlers under test need not use what they ask for

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onceonly import Context, Endpoint, Retry
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler
from tests.endpoint.harness import endpoint


@dataclass
class Order:
    """A message."""

    id: str


class Bank:
    """Something a provider makes."""


class Mailer:
    """Something else a provider makes."""


class OwnSession(AsyncSession):
    """A session class of the user's own."""


def sql_endpoint() -> Endpoint:
    """Make an endpoint whose handlers may ask for SQL sessions."""
    return endpoint(store="sqlite:///never-opened.db")


def problems(shop: Endpoint) -> list[str]:
    """List what is wrong with an endpoint's handlers and providers."""
    with pytest.raises(InvalidHandler) as caught:
        host_of(shop).handlers()
    return [line.removeprefix("  * ") for line in str(caught.value).splitlines()[1:]]


def problem_of(handler: Callable[..., Any], **options: Any) -> str:
    """Return the one problem of one handler."""
    shop = sql_endpoint()
    shop.handler(**options)(handler)
    (problem,) = problems(shop)
    return problem


async def without_parameters() -> None:
    """Take nothing."""


async def unannotated(order) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 - that is the point
    """Take something."""


async def number(order: complex) -> None:
    """Take no body."""


async def variadic(order: Order, *args: object) -> None:
    """Take anything."""


async def variadic_names(order: Order, **kwargs: object) -> None:
    """Take anything."""


async def unknown_type(order: Order, bank: Bank) -> None:
    """Ask for what nobody makes."""


async def unannotated_second(order: Order, bank) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 - that is the point
    """Ask for nothing in particular."""


async def wants_session(order: Order, session: Session) -> None:
    """Ask for the wrong kind."""


def wants_async_session(order: Order, session: AsyncSession) -> None:
    """Ask for the wrong kind."""


async def positional_only(order: Order, context: Context, /) -> None:
    """Ask by position."""


async def unresolvable(order: "Odrer") -> None:  # type: ignore[name-defined] # noqa: F821 - that is the point
    """Misspell."""


async def generator(order: Order) -> AsyncIterator[int]:
    """Yield."""
    yield 1


async def of_dictionaries(order: dict[str, Any]) -> None:
    """Take any JSON object."""


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (without_parameters, "it has no parameters: the first one receives the message"),
        (unannotated, "order, has no annotation"),
        (number, "an attrs class, dict, list, str, int, float, bool, None or bytes, not complex"),
        (variadic, "*args: object cannot be injected"),
        (variadic_names, "**kwargs: object cannot be injected"),
        (unknown_type, "bank: Bank cannot be injected; available are AsyncConnection or AsyncSession, Context"),
        (unannotated_second, "bank has no annotation, so it cannot be injected"),
        (wants_session, "Session is for def handlers; here ask for AsyncConnection or AsyncSession"),
        (wants_async_session, "AsyncSession is for async def handlers; here ask for Connection or Session"),
        (positional_only, "context is positional-only"),
        (unresolvable, "an annotation cannot be resolved: name 'Odrer' is not defined"),
        (generator, "a handler must not `yield`"),
        (of_dictionaries, 'is unknown: set @handler(type="...")'),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_signature_is_told(handler: Callable[..., Any], told: str) -> None:
    """With the handler's name, and what to write instead."""
    problem = problem_of(handler)
    assert problem.startswith(f"handler {handler.__name__}: ")
    assert told in problem


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"retry": Retry(factor=0)}, "factor"),
        ({"type": " "}, "type"),
    ],
)
def test_wrong_options_of_a_handler_are_told(options: dict[str, Any], told: str) -> None:
    """They belong to the handler, so its name is there."""

    async def place(order: Order) -> None:
        """Do nothing."""

    assert told in problem_of(place, **options)


def test_all_problems_are_told_at_once() -> None:
    """Nobody wants to start ten times to find ten mistakes."""
    shop = sql_endpoint()
    for handler in (unannotated, number, unknown_type):
        shop.handler(handler)
    assert len(problems(shop)) == 3


def test_two_handlers_for_one_type_are_refused() -> None:
    """Naming both, and the type."""
    shop = sql_endpoint()

    @shop.handler
    async def one(order: Order) -> None:
        """Do nothing."""

    @shop.handler(type="Order")
    async def two(body: bytes) -> None:
        """Do nothing."""

    (problem,) = problems(shop)
    assert ".one and " in problem
    assert ".two both handle 'Order'" in problem


def test_an_endpoint_without_handlers_cannot_start() -> None:
    """It would swallow its queue into the dead letters."""
    assert "no handler is registered" in problems(sql_endpoint())[0]


@pytest.mark.parametrize("registered", [Order, functools.partial(number, 1), None.__class__, "place", 5])
def test_only_functions_and_methods_can_be_registered(registered: Any) -> None:
    """Told where it is registered."""
    with pytest.raises(InvalidHandler, match="is not a function"):
        sql_endpoint().handler(registered)


def test_annotations_may_be_text_and_name_local_classes() -> None:
    """As under `from __future__ import annotations`, and inside a function, as in most tests."""

    @dataclass
    class Local:
        id: str

    shop = sql_endpoint()

    @shop.handler
    async def place(order: "Local", session: "AsyncSession", context: "Context") -> None:
        """Do nothing."""

    @shop.handler(type="second")
    async def later(order: "DefinedLater") -> None:
        """Do nothing."""

    @dataclass
    class DefinedLater:
        id: str

    assert shop.topology().events == ("Local", "second")


def test_a_decorated_handler_keeps_its_signature() -> None:
    """As long as the decorator uses `functools.wraps`."""
    shop = sql_endpoint()

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return call

    @shop.handler
    @logged
    async def place(order: Order, connection: AsyncConnection) -> None:
        """Do nothing."""

    assert shop.topology().events == ("Order",)


def test_a_session_class_of_ones_own_can_be_asked_for() -> None:
    """An `async_sessionmaker` may make it."""
    shop = sql_endpoint()

    @shop.handler
    async def place(order: Order, session: OwnSession) -> None:
        """Do nothing."""

    @shop.handler(type="sync")
    def place_sync(order: Order, session: Session, connection: Connection) -> None:
        """Do nothing."""

    assert shop.topology().events == ("Order", "sync")


def test_the_registered_function_is_given_back_unchanged() -> None:
    """So that it can be called directly in a unit test."""
    shop = sql_endpoint()
    assert shop.handler(number) is number
    assert shop.handler(type="x")(number) is number
    assert shop.provide(number) is number
    assert shop.provide(scope="message")(number) is number


def one_handler(shop: Endpoint) -> Endpoint:
    """Return the endpoint a handler that is fine."""

    @shop.handler
    async def place(order: Order) -> None:
        """Do nothing."""

    return shop


def provider_problem(*factories: Callable[..., Any], scope: str = "process") -> str:
    """Return the one problem of some providers."""
    shop = one_handler(sql_endpoint())
    for factory in factories:
        shop.provide(scope=scope)(factory)
    (problem,) = problems(shop)
    return problem


def bank() -> Bank:
    """Make a bank."""
    return Bank()


def another_bank() -> Bank:
    """Make a bank."""
    return Bank()


def bank_from_mailer(mailer: Mailer) -> Bank:
    """Make a bank."""
    return Bank()


def mailer_from_bank(bank: Bank) -> Mailer:
    """Make a mailer."""
    return Mailer()


def bank_for_a_message(session: AsyncSession) -> Bank:
    """Make a bank."""
    return Bank()


def bank_for_a_def_handler(session: Session) -> Bank:
    """Make a bank."""
    return Bank()


def unannotated_factory():  # type: ignore[no-untyped-def] # noqa: ANN201 - that is the point
    """Make something."""


def badly_annotated_generator() -> Bank:  # type: ignore[misc]
    """Make a bank."""
    yield Bank()


def makes_a_session() -> AsyncSession:
    """Make what is there."""
    return AsyncSession()


@pytest.mark.parametrize(
    ("factories", "told"),
    [
        ((bank, another_bank), "bank and another_bank both provide Bank"),
        ((bank_from_mailer, mailer_from_bank), "circular dependency of providers: bank_from_mailer, mailer_from_bank"),
        ((bank_from_mailer,), "mailer: Mailer cannot be injected"),
        ((bank_for_a_message,), 'session: AsyncSession exists for each message only: use @provide(scope="message")'),
        (
            (bank_for_a_def_handler,),
            'session: Session is for def handlers; providers with @provide(scope="message") can ask for',
        ),
        ((unannotated_factory,), "annotate its return type"),
        ((badly_annotated_generator,), "as Iterator[...] or AsyncIterator[...]"),
        ((makes_a_session,), "AsyncSession is already provided"),
    ],
)
def test_a_wrong_provider_is_told(factories: tuple[Callable[..., Any], ...], told: str) -> None:
    """With its name, together with all other problems."""
    assert told in provider_problem(*factories)


def test_a_scope_is_one_of_two() -> None:
    """And a misspelt one is told."""
    assert "scope must be 'process' or 'message', not 'request'" in provider_problem(bank, scope="request")


def test_a_process_provider_cannot_need_one_for_each_message() -> None:
    """It outlives it."""
    shop = one_handler(sql_endpoint())
    shop.provide(mailer_from_bank)
    shop.provide(scope="message")(bank)
    assert "Bank exists for each message only" in problems(shop)[0]


def test_generators_provide_what_they_yield() -> None:
    """Annotated as an iterator of it."""
    shop = sql_endpoint()

    @shop.provide
    def make_bank() -> Iterator[Bank]:
        yield Bank()

    @shop.provide(scope="message")
    async def make_mailer(bank: Bank, session: AsyncSession, context: Context) -> AsyncIterator[Mailer]:
        yield Mailer()

    @shop.handler
    async def place(order: Order, mailer: Mailer, bank: Bank) -> None:
        """Do nothing."""

    assert shop.topology().events == ("Order",)
