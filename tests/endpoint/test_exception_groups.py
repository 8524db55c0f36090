"""Exception groups: what counts is what is in them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from onceonly import ConflictError, Context, Endpoint, Reject, RetryLater
from onceonly.endpoint.failures import CANCELLED
from onceonly.errors import InvalidEffect
from onceonly.model.errors import leaves, text_of
from onceonly.model.message import Failure, FailureKind
from onceonly.runtime.observe.crash import ProcessCrash
from onceonly.types import CallNext
from tests.endpoint.harness import effects, endpoint, failure


@dataclass
class Order:
    """A message."""

    id: str


class Helper:
    """What a provider makes."""


class Speechless(Exception):
    """An exception whose text is worse than itself."""

    def __init__(self, worse: BaseException) -> None:
        super().__init__("x")
        self._worse = worse

    def __str__(self) -> str:
        raise self._worse

    __repr__ = __str__


def raising(error: BaseException) -> Endpoint:
    """Make an endpoint whose handler raises this."""
    shop = endpoint()

    @shop.handler
    async def place(_order: Order) -> None:
        raise error

    return shop


async def outcome(*errors: BaseException) -> Failure:
    """Run a handler that raises a group of these, inside another group, and return its failure."""
    return await failure(raising(BaseExceptionGroup("outer", [BaseExceptionGroup("inner", errors)])))


async def failing(error: BaseException) -> None:
    """Fail in a task."""
    raise error


async def test_a_group_of_one_is_what_it_holds() -> None:
    """The reason and the traceback are those of the exception inside."""
    found = await outcome(ValueError("no such customer"))
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "ValueError: no such customer")
    assert "ValueError: no such customer" in found.traceback
    later = await outcome(RetryLater(5, "not yet"))
    assert (later.kind, later.reason, later.delay) == (FailureKind.LATER, "not yet", 5)


async def test_a_group_of_rejections_is_a_rejection_with_all_reasons() -> None:
    """A retry would end in the same way. A reason that occurs twice is named once."""
    found = await outcome(Reject("no name"), Reject("no address"), Reject("no name"))
    assert (found.kind, found.reason) == (FailureKind.REJECTED, "no name; no address")
    assert (await outcome(Reject("no name"), InvalidEffect("too large"))).kind is FailureKind.REJECTED


async def test_a_group_of_requests_to_retry_later_waits_for_the_longest() -> None:
    """Each of them needs its time."""
    found = await outcome(RetryLater(5, "bank"), RetryLater(30, "shop"), RetryLater(1, "post"))
    assert (found.kind, found.reason, found.delay) == (FailureKind.LATER, "bank; shop; post", 30)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ((ValueError("a"), KeyError("b")), "ValueError: a; KeyError: 'b'"),
        ((Reject("no"), ValueError("a")), "Reject: no; ValueError: a"),
        ((RetryLater(5, "later"), ValueError("a\nb")), "RetryLater: later; ValueError: a"),
        ((RetryLater(5, "later"), Reject("no")), "RetryLater: later; Reject: no"),
        ((SystemExit(3), ValueError("a")), "SystemExit: 3; ValueError: a"),
        ((KeyboardInterrupt(),), "KeyboardInterrupt"),
        ((asyncio.CancelledError(),), CANCELLED),
        ((ConflictError("mine"),), "ConflictError: mine"),
        (
            (RetryLater(float("nan"), "x"), RetryLater(5, "y")),
            "RetryLater needs a finite number of seconds, not nan; RetryLater: y",
        ),
    ],
)
async def test_any_other_group_is_a_counted_failure_with_all_reasons(errors: tuple[BaseException, ...], reason: str) -> None:
    """Whatever is in it: also what would end the process."""
    found = await outcome(*errors)
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, reason)


async def test_the_traceback_of_a_group_shows_all_of_it() -> None:
    """From the handler on."""
    found = await outcome(ValueError("a"), KeyError("b"))
    assert "raise error" in found.traceback
    assert "ValueError: a" in found.traceback
    assert "KeyError: 'b'" in found.traceback


async def test_a_crash_in_a_group_passes_through() -> None:
    """It stands for the end of the process."""
    with pytest.raises(ProcessCrash):
        await outcome(ValueError("a"), ProcessCrash("before-commit"))


async def test_a_task_group_of_a_middleware_or_a_provider_hides_nothing() -> None:
    """Both may run the handler inside a task group."""
    for place in ("middleware", "provider"):
        shop = raising(Reject("not for us"))
        if place == "middleware":

            @shop.middleware
            async def grouped(_context: Context, call_next: CallNext) -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_awaited(call_next))
        else:
            shop = endpoint()

            @shop.provide(scope="message")
            async def group() -> AsyncIterator[Helper]:
                async with asyncio.TaskGroup():
                    yield Helper()

            @shop.handler
            async def place_order(_order: Order, _helper: Helper) -> None:
                raise Reject("not for us")

        found = await failure(shop)
        assert (found.kind, found.reason) == (FailureKind.REJECTED, "not for us"), place


async def _awaited(call_next: CallNext) -> None:
    await call_next()


async def test_a_group_that_a_clean_up_raises_is_the_handlers_failure() -> None:
    """Also when the handler itself ended well."""
    shop = endpoint()

    @shop.provide(scope="message")
    async def helper() -> AsyncIterator[Helper]:
        yield Helper()
        raise BaseExceptionGroup("closing", [KeyboardInterrupt(), ValueError("a")])

    @shop.handler
    async def place(_order: Order, _helper: Helper) -> None:
        return

    assert (await failure(shop)).reason == "KeyboardInterrupt; ValueError: a"


async def test_a_group_of_an_own_check_of_a_body_is_a_failure_like_any_other() -> None:
    """Validators may collect what they find."""

    @dataclass
    class Picky:
        id: str

        def __post_init__(self) -> None:
            raise BaseExceptionGroup("checks", [SystemExit(1), ValueError("bad")])

    shop = endpoint()

    @shop.handler(type="Order")
    async def place(_order: Picky) -> None:
        raise AssertionError("never runs")

    assert (await failure(shop)).reason == "SystemExit: 1; ValueError: bad"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_catches_the_failure_of_its_task_group_has_ended_well(waits: bool) -> None:  # noqa: FBT001 - pytest's way
    """Python 3.11 and 3.12 leave `cancelling()` at 1 when a task fails while the group waits for its end."""
    shop = endpoint()

    @shop.handler
    async def place(_order: Order, context: Context) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing(ValueError("caught")))
                if waits:
                    await asyncio.Event().wait()
        except* ValueError:
            context.publish({"id": "1"}, type="placed")

    assert [send.message.type for send in await effects(shop)] == ["placed"]


async def test_the_failure_of_a_task_group_is_that_of_its_task() -> None:
    """And not a cancellation."""
    shop = endpoint()

    @shop.handler
    async def place(_order: Order) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing(ValueError("no stock")))

    assert (await failure(shop)).reason == "ValueError: no stock"


async def test_a_handler_that_swallows_its_cancellation_has_failed_also_after_a_task_group() -> None:
    """A cancellation by something else may have cut its work off."""
    shop = endpoint()

    @shop.handler
    async def place(_order: Order) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing(ValueError("caught")))
        except* ValueError:
            pass
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    assert (await failure(shop)).reason == CANCELLED


@pytest.mark.parametrize("worse", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), ValueError()])
async def test_an_exception_whose_text_cannot_be_had_is_a_failure_like_any_other(worse: BaseException) -> None:
    """Whatever `__str__` raises, and wherever in the chain or the group the exception is."""
    told = f"Speechless: (its text raised {type(worse).__name__})"
    assert (await failure(raising(Speechless(worse)))).reason == told
    assert (await outcome(Speechless(worse), ValueError("a"))).reason == f"{told}; ValueError: a"
    chained = ValueError("a")
    chained.__cause__ = Speechless(worse)
    assert (await failure(raising(chained))).reason == "ValueError: a"


async def test_an_exception_whose_notes_cannot_be_read_is_a_failure_like_any_other() -> None:
    """Python 3.11 reads `__notes__` without protection when it formats a traceback."""

    class Noted(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise SystemExit(3)

    found = await failure(raising(Noted("x")))
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "Noted: x")
    assert "SystemExit" in found.traceback


def test_each_exception_of_a_group_is_a_leaf_once() -> None:
    """However often a group holds it, and however deep."""
    one, two = ValueError("1"), ValueError("2")
    group: ExceptionGroup[Exception] = ExceptionGroup("", [one, two])
    for _ in range(2000):
        group = ExceptionGroup("", [group, group])
    assert leaves(group) == (one, two)
    assert leaves(one) == (one,)
    assert text_of(one) == "1"
