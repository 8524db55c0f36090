"""The kit: what users' tests stand on. It must show exactly-once where it is, and its absence where it is not."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Off, Reject, Retry, RetryLater, SetupError, testing
from onceonly.adapters.memory.store import Notebook
from onceonly.config.deduplication import Deduplication, History
from tests.testing.crash_points import UNREACHED

metadata = MetaData()
journal = Table(
    "journal",
    metadata,
    Column("line", Integer, primary_key=True, autoincrement=True),
    Column("text", String(40), nullable=False),
)


@dataclass
class Write:
    """Asks for one journal line."""

    text: str


@dataclass
class Written:
    """Announces it."""

    text: str


@dataclass
class Remind:
    """Sent to the endpoint itself, for later."""

    text: str


def journalist(deduplication: Deduplication = History(), retry: Retry = Retry()) -> Endpoint:  # noqa: B008 - immutable
    """Make an endpoint whose work shows every time it is done: a row without a unique key."""
    endpoint = Endpoint(
        "journalist",
        store="sqlite:///never-opened.db",
        transport="sqlite:///never-opened.db",
        metadata=metadata,
        deduplication=deduplication,
        retry=retry,
    )

    @endpoint.handler
    async def write(message: Write, session: AsyncSession, context: Context) -> None:
        if message.text == "bad":
            raise ValueError("no such word")
        if message.text == "reject":
            raise Reject("not printable")
        if message.text == "later" and not await lines_in(session):
            raise RetryLater(60)
        if message.text == "never":
            raise RetryLater(0)
        await session.execute(insert(journal).values(text=message.text))
        context.publish(Written(message.text))

    @endpoint.handler
    async def remind(message: Remind, session: AsyncSession, context: Context) -> None:
        if message.text == "start":
            context.send(Remind("ring"), to="journalist", delay=3600)
        else:
            await session.execute(insert(journal).values(text=message.text))
            context.send(Written(message.text), to="archive")

    return endpoint


async def lines_in(session: AsyncSession) -> int:
    """Count the journal."""
    return await session.scalar(select(func.count()).select_from(journal)) or 0


async def lines(t: testing.EndpointRun) -> int:
    """Count the committed journal."""
    async with t.session() as session:
        return await lines_in(session)


async def test_copies_are_handled_once_and_sent_once() -> None:
    """Two copies, one after the other or in one batch: one line, one message, on the wire once."""
    for together in (False, True):
        async with testing.run(journalist()) as t:
            report = await t.deliver(Write("a"), copies=2, together=together)
            assert (await lines(t), t.sent) == (1, [Written("a")])
            assert (report.handled, report.known, t.sent[0].copies) == (1, 1, 1)


async def test_each_delivery_is_another_message_unless_it_has_the_same_id() -> None:
    """Equal bodies are no copies; equal ids are."""
    async with testing.run(journalist()) as t:
        await t.deliver(Write("a"))
        await t.deliver(Write("a"))
        assert await lines(t) == 2
        await t.deliver(Write("b"), id="7")
        await t.deliver(Write("b"), id="7")
        assert await lines(t) == 3


@pytest.mark.parametrize("point", testing.CRASH_POINTS)
async def test_a_crash_anywhere_changes_nothing_about_the_result(point: str) -> None:
    """Die, start again, deliver again: still one line and one message."""
    async with testing.run(journalist()) as t:
        await t.deliver(Write("a"), copies=2, crash_at=point, must_crash=point not in UNREACHED)
        assert (await lines(t), t.sent, t.dead_letters, t.failures) == (1, [Written("a")], (), [])
        assert t.crashes == (0 if point in UNREACHED else 1)


@pytest.mark.parametrize("point", ["after-dispatch", "before-retire", "before-forget"])
async def test_a_crash_after_dispatch_sends_a_true_duplicate(point: str) -> None:
    """The wire sees it twice, with one id and one body."""
    async with testing.run(journalist()) as t:
        await t.deliver(Write("a"), crash_at=point)
        assert [sent.copies for sent in t.sent] == [2]
        assert t.raw[0] == t.raw[1]


@pytest.mark.parametrize(("copies", "point"), [(2, None), (1, "after-commit"), (1, "before-ack")])
async def test_an_endpoint_without_deduplication_is_caught(copies: int, point: str | None) -> None:
    """The same kit shows the duplicates of honest at-least-once: it would not hide ours."""
    async with testing.run(journalist(Off())) as t:
        await t.deliver(Write("a"), copies=copies, crash_at=point)
        assert await lines(t) == 2


async def test_a_delivery_that_cannot_be_meant_is_an_error() -> None:
    """A typing error must not make a test pass."""
    async with testing.run(journalist()) as t:
        with pytest.raises(SetupError, match="after-comit"):
            await t.deliver(Write("a"), crash_at="after-comit")
        with pytest.raises(ValueError, match="copies"):
            await t.deliver(Write("a"), copies=0)
        assert await lines(t) == 0


@pytest.mark.parametrize("point", [None, "before-retry-copy", "after-retry-copy", "before-dead-letter", "after-dead-letter"])
async def test_a_failing_message_becomes_one_dead_letter_when_the_clock_has_passed_its_retries(point: str | None) -> None:
    """Immediate retries happen at once, delayed ones when the clock gets there."""
    async with testing.run(journalist(retry=Retry(immediate=1, delayed=1, first_delay=10)), raise_failures=False) as t:
        await t.deliver(Write("bad"), crash_at=point if point and "retry" in point else None)
        assert t.dead_letters == ()
        t.clock.advance(11)
        await t.settle(crash_at=point if point and "dead" in point else None)
        (letter,) = t.dead_letters
        assert any("no such word" in failure.reason for failure in letter.history)
        assert letter.message is not None
        assert letter.attempts >= 3
        assert (await lines(t), t.sent) == (0, [])


async def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    """No retries, and the reason is the handler's."""
    async with testing.run(journalist()) as t:
        report = await t.deliver(Write("reject"))
        assert [letter.reason for letter in t.dead_letters] == ["not printable"]
        assert report.dead == 1


async def test_what_asks_for_later_comes_when_the_clock_says_so() -> None:
    """Nothing is left to wait for real time."""
    async with testing.run(journalist()) as t:
        await t.deliver(Write("later"))
        async with t.session() as session:
            await session.execute(insert(journal).values(text="prepared by the test"))
        await t.settle()
        assert await lines(t) == 1
        t.clock.advance(60)
        await t.settle()
        assert (await lines(t), t.sent) == (2, [Written("later")])


async def test_a_delayed_message_to_itself_comes_back_and_commands_to_others_are_written_down() -> None:
    """The endpoint's own queue is real; other endpoints are only addresses."""
    async with testing.run(journalist()) as t:
        await t.deliver(Remind("start"))
        (reminder,) = t.sent
        assert (reminder, reminder.to) == (Remind("ring"), "journalist")
        assert reminder.due == t.clock.now() + 3600 * 1000
        assert await lines(t) == 0
        t.clock.advance(3600)
        await t.settle()
        assert (await lines(t), t.sent[1], t.sent[1].to) == (1, Written("ring"), "archive")


async def test_a_handler_that_never_stops_asking_is_an_error_of_the_test() -> None:
    """It ends, and says what it saw."""
    async with testing.run(journalist()) as t:
        with pytest.raises(AssertionError, match="not settled"):
            await t.deliver(Write("never"))


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ((), b"{}", "no identity"),
        ((("ce-id", ""), ("ce-source", "s"), ("ce-type", "Write")), b"{}", "no identity"),
        ((("ce-id", "1"), ("ce-source", "s"), ("ce-type", "Write")), b"{", "Write"),
        ((("ce-id", "1"), ("ce-source", "s"), ("ce-type", "Unheard")), b"{}", "Unheard"),
    ],
)
async def test_any_bytes_can_be_delivered(headers: tuple[tuple[str, str], ...], body: bytes, reason: str) -> None:
    """What cannot be handled is a dead letter with its reason, also when it comes twice with a crash between."""
    async with testing.run(journalist()) as t:
        await t.deliver_raw(headers, body, copies=2, crash_at="after-dead-letter")
        (letter,) = t.dead_letters
        assert reason in letter.reason
        assert t.crashes == 1


async def test_a_whole_message_can_be_delivered() -> None:
    """Every attribute is the test's to choose."""
    async with testing.run(journalist()) as t:
        message = t.message({"text": "a"}, type="Write", source="elsewhere", id="7", conversationid="c")
        await t.deliver(message)
        (sent,) = t.sent
        assert sent.message.extension("causationid") == "7"
        assert sent.message.extension("conversationid") == "c"


async def write_and_fail(t: testing.EndpointRun) -> None:
    """Fail in the middle of a session's block."""
    async with t.session() as session:
        await session.execute(insert(journal).values(text="lost"))
        raise ZeroDivisionError


async def test_data_prepared_in_a_session_is_not_kept_when_its_block_fails() -> None:
    """The block is one database transaction."""
    async with testing.run(journalist()) as t:
        with pytest.raises(ZeroDivisionError):
            await write_and_fail(t)
        assert await lines(t) == 0


async def test_the_endpoints_own_store_is_used_when_asked_for(tmp_path: Path) -> None:
    """What was handled in an earlier run is known there."""
    endpoint = journalist()
    endpoint.settings = replace(endpoint.settings, store=f"sqlite:///{tmp_path}/own.db")
    for _ in range(2):
        async with testing.run(endpoint, own_store=True) as t:
            await t.deliver(Write("a"), id="7")
            assert await lines(t) == 1
    async with testing.run(endpoint) as t:
        assert await lines(t) == 0


@pytest.mark.parametrize("own_store", [True, False])
async def test_an_endpoint_that_lives_in_memory_survives_its_crashes(own_store: bool) -> None:  # noqa: FBT001 - a parameter
    """A crash ends the process, not the store."""
    endpoint = Endpoint("pad", store="memory://pad", transport="memory://pad")

    @endpoint.handler
    async def write(message: Write, notebook: Notebook) -> None:
        notebook.write("line", message.text)

    async with testing.run(endpoint, own_store=own_store) as t:
        await t.deliver(Write("a"), copies=2, crash_at="after-commit")
        assert t.store.notes() == (("line", "a"),)
        assert t.crashes == 1
        async with t.session() as notebook:
            notebook.write("line", "b")
        assert len(t.store.notes()) == 2


async def test_a_crash_closes_and_opens_what_the_process_had_made() -> None:
    """Providers belong to the process; a new one makes its own."""
    events: list[str] = []
    endpoint = journalist()

    class Press:
        """Something that lives as long as the process."""

    @endpoint.provide
    async def press() -> AsyncIterator[Press]:
        events.append("open")
        yield Press()
        events.append("closed")

    async with testing.run(endpoint) as t:
        await t.deliver(Write("a"), crash_at="before-commit")
        assert events == ["open", "closed", "open"]
        await t.restart()
    assert events == ["open", "closed"] * 3


def test_the_clock_moves_forward_only() -> None:
    """A lease that began in the future would never end."""
    clock = testing.RunClock()
    before = clock.now()
    clock.advance(1.5)
    assert clock.now() == before + 1500
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


async def test_what_was_sent_equals_only_what_would_look_the_same_on_the_wire() -> None:
    """Type and body decide; dicts are compared as JSON, whatever the order of their keys."""
    async with testing.run(journalist()) as t:
        await t.deliver(Write("a"))
        (sent,) = t.sent
        assert sent == Written("a")
        assert sent == {"text": "a"}
        assert sent != Written("b")
        assert sent != Write("a")
        assert sent != 3
        assert sent.read(Written) == Written("a")
        assert repr(sent) == '<Written {"text":"a"}>'
        assert len({sent, *t.sent}) == 1
