"""One run of a handler: what it is given, and what its end means."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import CommitFailed, ConflictError, Context, OutcomeUnknown, Reject, Retry, RetryLater
from onceonly.adapters.memory.store import Notebook
from onceonly.endpoint.host import host_of
from onceonly.errors import CommitRefused, InvalidEffect
from onceonly.model.errors import BudgetExceeded, HandlerFailed
from onceonly.model.message import Failure, FailureKind
from onceonly.ports.store import SyncThread
from onceonly.runtime.observe.crash import ProcessCrash
from tests.endpoint.harness import NOW, STILL, effects, endpoint, failure, incoming, resources


@dataclass
class Order:
    """A message."""

    id: str
    total: int = 0


async def test_an_async_handler_gets_the_message_and_what_it_asks_for() -> None:
    """By annotation, in any order, whatever the parameters are called."""
    shop, seen = endpoint(), []

    @shop.handler
    async def place(order: Order, context: Context, notes: Notebook) -> None:
        notes.write(order.id, order.total)
        seen.append((order, context.endpoint, context.message.id, notes))

    offered = await resources()
    await effects(shop, incoming({"id": "1", "total": 3}), offered)
    assert seen == [(Order("1", 3), "shop", "m1", offered.get(Notebook))]


async def test_a_def_handler_runs_with_the_synchronous_resources() -> None:
    """Through `run_sync`, in the loop's own thread."""
    shop, seen = endpoint(), []

    @shop.handler
    def place(order: Order, notes: Notebook, context: Context) -> None:
        seen.append((order.id, type(notes)))
        context.publish({"id": order.id}, type="placed")

    assert [send.message.type for send in await effects(shop)] == ["placed"]
    assert seen == [("1", Notebook)]


async def test_a_method_can_be_a_handler() -> None:
    """Its `self` is not a parameter any more."""
    shop, seen = endpoint(), []

    class Mailer:
        async def place(self, order: Order) -> None:
            seen.append(order.id)

    shop.handler(Mailer().place)
    await effects(shop)
    assert seen == ["1"]


async def test_keyword_only_parameters_and_defaults_work() -> None:
    """A default that nothing fills stays."""
    shop, seen = endpoint(), []

    @shop.handler
    async def place(order: Order, /, limit: int = 7, *, context: Context) -> None:
        seen.append((order.id, limit, context.endpoint))

    await effects(shop)
    assert seen == [("1", 7, "shop")]


async def test_a_handler_of_plain_dictionaries_or_bytes_names_its_type() -> None:
    """They do not know it themselves."""
    shop, seen = endpoint(), []

    @shop.handler(type="shop.raw")
    async def raw(body: bytes) -> None:
        seen.append(body)

    @shop.handler(type="shop.any")
    async def anything(body: dict[str, Any]) -> None:
        seen.append(body)

    await effects(shop, incoming(b"\xff", "shop.raw"))
    await effects(shop, incoming({"a": 1}, "shop.any"))
    assert seen == [b"\xff", {"a": 1}]


async def test_the_context_tells_how_often_the_message_failed_before() -> None:
    """As the copy that arrived knows it."""
    shop, seen = endpoint(), []

    @shop.handler
    async def place(_order: Order, context: Context) -> None:
        seen.append(context.attempts)

    await effects(shop)
    assert seen == [0]


def raises(error: BaseException) -> Callable[[Order], Any]:
    """Make a handler that raises."""

    async def place(_order: Order) -> None:
        raise error

    return place


async def outcome(error: BaseException) -> Failure:
    """Run a handler that raises, and give the failure it ends in."""
    shop = endpoint()
    shop.handler(raises(error))
    return await failure(shop)


async def test_an_exception_fails_the_message_and_is_kept_with_its_traceback() -> None:
    """The traceback begins in the user's own function."""
    found = await outcome(ValueError("no such customer"))
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "ValueError: no such customer")
    assert found.traceback.count("File ") == 1
    assert "raise error" in found.traceback


class Mute(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


async def test_a_long_reason_is_one_line_and_the_rest_is_in_the_traceback() -> None:
    """SQL errors bring their statement along; some errors cannot say anything."""
    found = await outcome(ValueError("duplicate key\n[SQL: INSERT ...]"))
    assert found.reason == "ValueError: duplicate key"
    assert "[SQL: INSERT ...]" in found.traceback
    assert (await outcome(Mute())).reason == "Mute: (its text raised RuntimeError)"
    assert (await outcome(ValueError())).reason == "ValueError"


@dataclass
class Picky:
    """A message whose own check fails in its own way."""

    id: str

    def __post_init__(self) -> None:
        raise KeyError(self.id)


async def test_a_body_whose_own_check_breaks_is_a_failure_like_any_other() -> None:
    """Counted, so that it ends some day."""
    shop = endpoint()

    @shop.handler(type="Order")
    async def place(_order: Picky) -> None:
        raise AssertionError("never runs")

    found = await failure(shop)
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "KeyError: '1'")


async def test_a_rejected_message_says_why() -> None:
    """Reject goes to the dead letters at once."""
    found = await outcome(Reject("not for us"))
    assert (found.kind, found.reason) == (FailureKind.REJECTED, "not for us")


@pytest.mark.parametrize(("asked", "kept"), [(5, 5), (0.5, 0.5), (-3, 0), (1e30, 3650 * 86400)])
async def test_a_handler_may_ask_to_be_retried_later(asked: float, kept: float) -> None:
    """Without blame, and within ten years."""
    found = await outcome(RetryLater(asked, "not yet"))
    assert (found.kind, found.reason, found.delay) == (FailureKind.LATER, "not yet", kept)


@pytest.mark.parametrize("asked", [float("nan"), float("inf")])
async def test_a_delay_that_is_no_number_is_the_handlers_own_fault(asked: float) -> None:
    """It must not end the worker's arithmetic."""
    assert (await outcome(RetryLater(asked))).kind is FailureKind.EXCEPTION


async def test_text_that_no_store_takes_is_escaped() -> None:
    """A lone surrogate or a NUL in an error's text must not keep the dead letter from being stored."""
    assert (await outcome(ValueError("a\ud800b\0c"))).reason == "ValueError: a\\ud800b\\0c"


async def test_an_effect_that_can_never_be_sent_rejects_the_message() -> None:
    """Trying again would capture it again."""
    found = await outcome(InvalidEffect("too large"))
    assert (found.kind, found.reason) == (FailureKind.REJECTED, "too large")


@pytest.mark.parametrize(
    "error",
    [
        ConflictError("x"),
        CommitFailed("x"),
        OutcomeUnknown("x"),
        BudgetExceeded("x"),
        CommitRefused("x"),
        HandlerFailed(Failure(kind=FailureKind.LATER, reason="x")),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseException("x"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_its_own_failure(error: BaseException) -> None:
    """Also what a port would say of an outage, and what would end the process: else it would come round for ever."""
    found = await outcome(error)
    assert found.kind is FailureKind.EXCEPTION
    assert found.reason.startswith(type(error).__name__)
    assert "raise error" in found.traceback


async def test_a_crash_passes_through() -> None:
    """It stands for the end of the process."""
    with pytest.raises(ProcessCrash):
        await outcome(ProcessCrash("before-commit"))


async def test_a_slow_handler_is_stopped_by_its_timeout() -> None:
    """The handler's own, else the endpoint's."""
    shop, never = endpoint(timeout=1000), asyncio.Event()

    @shop.handler(timeout=0.01)
    async def place(_order: Order) -> None:
        await never.wait()

    found = await failure(shop)
    assert (found.kind, found.reason) == (
        FailureKind.TIMEOUT,
        f"handler {__name__}.{place.__qualname__.replace('<locals>.', '')} took longer than 0.01 s",
    )


async def test_the_handlers_own_time_out_is_an_exception() -> None:
    """Of a client it called, for example."""
    assert (await outcome(TimeoutError("bank did not answer"))).kind is FailureKind.EXCEPTION


async def test_a_cancelled_worker_is_no_failure_of_the_message() -> None:
    """Cancellation equals a crash: nothing is counted."""
    shop, started, never = endpoint(), asyncio.Event(), asyncio.Event()

    @shop.handler
    async def place(_order: Order) -> None:
        started.set()
        await never.wait()

    task = asyncio.create_task(effects(shop))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_handler_that_cancels_itself_fails() -> None:
    """Awaiting a cancelled task must not look like the end of the worker."""
    assert (await outcome(asyncio.CancelledError())).kind is FailureKind.EXCEPTION


@pytest.mark.parametrize("body", [b"", b"{", b'{"id":7}', b"\xff"])
async def test_an_undecodable_body_is_rejected_with_a_reason(body: bytes) -> None:
    """Its sender has to change something, so it is a dead letter at once."""
    shop = endpoint()
    shop.handler(raises(AssertionError("never runs")))
    found = await failure(shop, incoming(body))
    assert found.kind is FailureKind.REJECTED
    assert "the body is not a valid Order" in found.reason


async def test_a_type_that_no_handler_takes_is_rejected_naming_those_that_are() -> None:
    """Only once the store has said that it is new: one handled before may have pending effects its effects."""
    shop = endpoint(unknown_types_wait=0)
    shop.handler(raises(AssertionError("never runs")))
    found = await failure(shop, incoming(type_="Odrer"))
    assert found.kind is FailureKind.REJECTED
    assert found.reason == "no handler of endpoint 'shop' takes 'Odrer'; it takes Order"


async def test_nothing_of_a_failed_handler_is_sent() -> None:
    """What it captured before it failed is gone with it."""
    shop = endpoint()

    @shop.handler
    async def place(order: Order, context: Context) -> None:
        context.publish(order)
        raise Reject("after all")

    assert (await failure(shop)).reason == "after all"


async def test_the_work_happens_inside_the_units_attempt() -> None:
    """So that an isolated unit can undo it."""
    shop = endpoint()

    @shop.handler
    async def place(order: Order, notes: Notebook) -> None:
        notes.write(order.id, "undone")
        raise Reject("after all")

    offered = await resources(isolated=True)
    await failure(shop, offered=offered)
    notebook = offered.get(Notebook)
    assert isinstance(notebook, Notebook)
    assert notebook.changes([]).notes == ()


ABORTED = Failure(kind=FailureKind.EXCEPTION, reason="aborted")


class RefusingResources:
    """Resources whose attempt raises at its end, because of what it finds there."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @asynccontextmanager
    async def attempt(self, _handler: str = "") -> AsyncIterator[None]:
        """Raise."""
        yield
        raise self._error

    def get(self, kind: type) -> object:
        """Offer nothing."""
        raise LookupError(kind)

    def is_busy(self) -> bool:
        """Tell that it never is: there is no store."""
        return False

    def leave(self, *, is_last: bool = False) -> None:
        """Write nothing."""

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run it."""
        return function(self.get)


@pytest.mark.parametrize(
    "error", [CommitRefused("x"), ConflictError("x"), CommitFailed("x"), OutcomeUnknown("x"), HandlerFailed(ABORTED)]
)
async def test_what_the_attempt_finds_out_at_its_end_reaches_the_algorithm(error: Exception) -> None:
    """It is the store's word: on the unit as a whole, or that the handler left the transaction aborted."""
    shop = endpoint()

    @shop.handler
    def place(order: Order) -> None:
        """Do nothing."""

    with pytest.raises(type(error)) as caught:
        await effects(shop, offered=RefusingResources(error))
    assert caught.value is error


def test_a_decision_follows_the_handlers_own_policy_or_the_endpoints() -> None:
    """Time and chance come from the surroundings."""
    shop = endpoint(retry=Retry(immediate=0, delayed=1, first_delay=2, jitter=0))

    @shop.handler
    async def place(order: Order) -> None:
        """Do nothing."""

    @shop.handler(type="strict", retry=Retry(immediate=0, delayed=0))
    async def strict(order: Order) -> None:
        """Do nothing."""

    boom = Failure(kind=FailureKind.EXCEPTION, reason="boom")
    judged = {
        type_: host_of(shop).handlers(STILL).decide_retry(incoming(type_=type_), boom, attempts=0, history=())
        for type_ in ("Order", "strict", "unknown")
    }
    assert {type_: (decision.give_up, decision.due) for type_, decision in judged.items()} == {
        "Order": (False, NOW + 2000),
        "strict": (True, 0),
        "unknown": (False, NOW + 2000),
    }
