"""The kit raises what handlers raise, and fails a test whose crash point was not reached."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Reject, Retry, RetryLater, testing
from onceonly.errors import InvalidEffect
from onceonly.model.errors import HandlerFailed

metadata = MetaData()
shelf = Table("shelf", metadata, Column("item", String(20), primary_key=True))
label = Table(
    "label",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("item", ForeignKey("shelf.item", deferrable=True, initially="DEFERRED")),
)


@dataclass
class Do:
    """Asks for one thing."""

    what: str


@dataclass
class Many:
    """Asks for several at once."""

    whats: list[str]


class Runs:
    """Counts the runs of a handler; the run with the number `failing` fails."""

    def __init__(self, failing: int = 0) -> None:
        self.count = 0
        self._failing = failing

    def begin(self) -> None:
        """Count one."""
        self.count += 1
        if self.count == self._failing:
            raise ValueError(f"run {self.count}")


RAISED: dict[str, Callable[[], BaseException]] = {
    "raise": lambda: ValueError("no such thing"),
    "exit": lambda: SystemExit(3),
    "reject": lambda: Reject("not today"),
    "later": lambda: RetryLater(60),
}


def clerk(runs: Runs, *, timeout: float = 30, retry: Retry = Retry(immediate=2, delayed=1, first_delay=10)) -> Endpoint:  # noqa: B008 - immutable
    """Make an endpoint that can fail in every way."""
    endpoint = Endpoint("clerk", store="sqlite:///x.db", transport="sqlite:///x.db", metadata=metadata, retry=retry)

    @endpoint.handler(timeout=timeout)
    async def do(message: Do, session: AsyncSession, context: Context) -> None:
        runs.begin()
        match message.what:
            case what if what in RAISED:
                error = RAISED[what]()
                raise error
            case "sleep":
                await asyncio.Event().wait()
            case "effect":
                context.publish(Do("x"), type="x" * 300)
            case "deferred":
                await session.execute(insert(label).values(id=1, item="nowhere"))
            case item:
                await session.execute(insert(shelf).values(item=item))

    @endpoint.handler
    async def many(message: Many, context: Context) -> None:
        for what in message.whats:
            context.send(Do(what), to="clerk")

    return endpoint


async def test_what_a_handler_raised_fails_the_test() -> None:
    """After everything else is done. Notes name the handler, the message and the way to turn this off."""
    async with testing.run(clerk(Runs())) as t:
        with pytest.raises(ValueError, match="no such thing") as raised:
            await t.deliver(Do("raise"), id="7")
        (note,) = raised.value.__notes__
        assert "clerk.do for message Do 7." in note
        assert "the first of 3 failures" in note
        assert "raise_failures=False" in note
        t.clock.advance(11)
        with pytest.raises(ValueError, match="no such thing"):
            await t.settle()
        assert [letter.attempts for letter in t.dead_letters] == [4]
        await t.deliver(Do("tea"))


async def test_each_attempt_is_listed_once() -> None:
    """With its message and its handler, although a failed unit runs again, and whether it is raised or not."""
    runs = Runs()
    async with testing.run(clerk(runs), raise_failures=False) as t:
        report = await t.deliver(Do("raise"), id="7")
        assert report.retried == 3
        assert [(str(each.exception), each.message.id) for each in t.failures] == [("no such thing", "7")] * 3
        assert {each.handler for each in t.failures} == {f"{__name__}.clerk.do"}
        await t.deliver(Do("tea"))
        assert len(t.failures) == 3


async def test_only_the_message_that_failed_is_listed() -> None:
    """Not its neighbours in the batch, which run again with it."""
    async with testing.run(clerk(Runs()), raise_failures=False) as t:
        await t.deliver(Many(["tea", "raise", "milk"]))
        assert {str(each.exception) for each in t.failures} == {"no such thing"}
        assert len(t.failures) == 3


@pytest.mark.parametrize("what", ["reject", "later"])
async def test_a_decision_of_a_handler_is_no_failure(what: str) -> None:
    """A test sees it in the dead letters, or after the clock was advanced."""
    async with testing.run(clerk(Runs())) as t:
        report = await t.deliver(Do(what))
        assert (t.failures, report.dead + report.retried) == ([], 1)


@pytest.mark.parametrize(
    ("what", "kind"),
    [("effect", InvalidEffect), ("sleep", TimeoutError), ("deferred", IntegrityError), ("exit", HandlerFailed)],
)
async def test_other_failures_of_a_handler_are_raised(what: str, kind: type[Exception]) -> None:
    """What cannot be sent, what takes too long, what the commit refuses, and what would end the test run."""
    async with testing.run(clerk(Runs(), timeout=0.05 if what == "sleep" else 30, retry=Retry(immediate=0, delayed=0))) as t:
        with pytest.raises(kind) as raised:
            await t.deliver(Do(what))
        assert [each.exception for each in t.failures] == [raised.value]
        assert [each.message.type for each in t.failures] == ["Do"]
        assert len(t.dead_letters) == 1


async def test_what_the_database_refuses_is_raised_as_its_driver_said_it() -> None:
    """A second row with the same key, in another message."""
    async with testing.run(clerk(Runs())) as t:
        await t.deliver(Do("tea"))
        with pytest.raises(IntegrityError):
            await t.deliver(Do("tea"))


async def test_what_is_no_message_for_a_handler_is_not_raised() -> None:
    """No handler ran: it is a dead letter."""
    async with testing.run(clerk(Runs())) as t:
        await t.deliver(t.message({"what": 3}, type="Do"))
        await t.deliver(t.message({}, type="Unheard"))
        assert (len(t.dead_letters), t.failures) == (2, [])


@pytest.mark.parametrize(
    ("point", "failing"),
    [("before-commit", 2), ("after-handle", 2), ("before-retry-copy", 1)],
    ids=["second run", "after the handler", "first run"],
)
async def test_a_failure_before_or_after_a_crash_is_raised(point: str, failing: int) -> None:
    """Also if the message is handled in the end."""
    async with testing.run(clerk(Runs(failing))) as t:
        with pytest.raises(ValueError, match=f"run {failing}"):
            await t.deliver(Do("tea"), crash_at=point)
        assert (t.crashes, len(t.failures), t.dead_letters) == (1, 1, ())
        async with t.session() as session:
            assert await session.scalar(text("SELECT count(*) FROM shelf")) == 1


async def test_a_crash_point_that_is_not_reached_fails_the_test() -> None:
    """And lists those that were reached."""
    async with testing.run(clerk(Runs())) as t:
        with pytest.raises(AssertionError) as raised:
            await t.deliver(Do("tea"), crash_at="before-retry-copy")
        assert "'before-retry-copy' was not reached. Reached: before-receive, after-receive, " in str(raised.value)
        assert " before-commit, " in str(raised.value)
        with pytest.raises(AssertionError, match="'before-commit' was not reached"):
            await t.settle(crash_at="before-commit")
        await t.deliver(Do("milk"), crash_at="before-retry-copy", must_crash=False)
        await t.settle(crash_at="before-commit", must_crash=False)
        assert t.crashes == 0


async def test_the_failure_of_a_handler_explains_why_a_crash_point_was_not_reached() -> None:
    """So it is raised first."""
    async with testing.run(clerk(Runs())) as t:
        with pytest.raises(ValueError, match="no such thing"):
            await t.deliver(Do("raise"), crash_at="after-dispatch")


async def test_retries_without_end_name_their_cause() -> None:
    """The exception of the last attempt is the cause of the error."""
    async with testing.run(clerk(Runs(), retry=Retry(immediate=1000))) as t:
        with pytest.raises(AssertionError, match="not settled") as raised:
            await t.deliver(Do("raise"))
        assert str(raised.value.__cause__) == "no such thing"
