"""Bulk actions on many letters, with runners that crash."""

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from sqlalchemy import insert, select

from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.world import Live
from onceonly.formats.records import encode_letter
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.operations.action_runner import LEASE_MS, ActionRunner
from onceonly.operations.actions import STORED_MS, ActionParts, Operator, confirm, new_action
from onceonly.operations.audit import UnstoredActionLog
from onceonly.ports.dead_letters import Filter
from onceonly.ports.operators import ActionLog
from onceonly.runtime.environment import Environment
from onceonly.sql.database import Database
from onceonly.sql.store import SqlActionLog, SqlDeadLetters
from onceonly.sql.store.tables import tables
from onceonly_conformance.clock import START, ManualClock
from tests.sql.every_database import emptied
from tests.sql.query_plans import plan_of

ANA = Operator("ana", "cli")
SHOP = Filter(endpoint="shop")


class MovingTimer:
    """A timer that moves the clock in place of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.slept = 0.0

    async def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self._clock.advance(int(seconds * 1000))
        self.slept += seconds


class Outbox:
    """A transport that takes all messages, counts them, and ends the process at some of its calls."""

    def __init__(self, crashes: Sequence[int] = ()) -> None:
        self.sent: Counter[str] = Counter()
        self.due: list[int] = []
        self._calls = 0
        self._crashes = crashes

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take messages. A crash comes after the broker has them."""
        self._calls += 1
        self.sent.update(each.message.id for each in sends)
        self.due.extend(each.due for each in sends)
        if self._calls in self._crashes:
            raise KeyboardInterrupt
        return tuple(Answer.TAKEN for _ in sends)


def letter(number: int, *, endpoint: str = "shop") -> DeadLetter:
    """Make a letter."""
    message = Message(id=f"m{number}", source="test", type="PlaceOrder", body=b"%d" % number)
    return DeadLetter(endpoint=endpoint, reason="no", headers=(), body=message.body, message=message, at=START)


async def store(database: Database, count: int) -> SqlDeadLetters:
    """Store many letters."""
    letters = SqlDeadLetters(database)
    for number in range(min(count, 1)):
        await letters.add(letter(number))
    own = tables(database.prefix, database.schema).dead_letters
    async with database.writing() as connection:
        (row,) = (await connection.execute(select(own))).mappings().all()
        rows = []
        for number in range(1, count):
            each = letter(number)
            changed = {"key": each.key, "letter": encode_letter(each), "identity": b"%016d" % number}
            rows.append({name: value for name, value in row.items() if name != "position"} | changed)
        for start in range(0, len(rows), 1000):
            await connection.execute(insert(own), rows[start : start + 1000])
    return letters


async def all_items(log: ActionLog, action: Action) -> list[ActionItem]:
    """Read all items."""
    found: list[ActionItem] = []
    while page := await log.items(action.position, after=found[-1].number if found else 0, limit=1000):
        found += page
    return found


async def run_with_crashes(place: str, count: int, crashes: Sequence[int], rate: float) -> None:
    """Retry letters; each crash ends a runner, and the next one waits for its lease."""
    clock = ManualClock()
    async with emptied(place) as database:
        letters, log = await store(database, count), SqlActionLog(database)
        outbox, timer = Outbox(crashes), MovingTimer(clock)
        parts = ActionParts(
            letters=letters,
            log=log,
            transport=outbox,  # type: ignore[arg-type]
            environment=Environment(clock=clock, timer=timer),
            head_start=60.0,
        )
        action = await confirm(parts, new_action(ANA, ActionKind.RETRY, "shop", ActionScope(rate=rate)))
        assert (action.total, action.state) == (count, ActionState.RUNNING)
        await letters.add(letter(count + 1))
        await letters.add(letter(count + 2, endpoint="billing"))
        for number in range(len(crashes)):
            with pytest.raises(KeyboardInterrupt):
                await ActionRunner(parts, name=f"runner {number}").run(action.position)
            other = await ActionRunner(parts, name="early").run(action.position)
            assert other.runner == f"runner {number}"
            clock.advance(LEASE_MS + 1)
            assert [each.position for each in await log.abandoned(clock.now())] == [action.position]
        ended = await ActionRunner(parts, name="last").run(action.position)
        assert (ended.state, ended.done + ended.kept, ended.done) == (ActionState.DONE, count, count)
        items = await all_items(log, ended)
        assert len({item.letter for item in items}) == len(items) == count
        assert {item.outcome for item in items} == {ItemOutcome.WAITING}
        assert set(outbox.sent) == {f"m{number}" for number in range(count)}
        assert await letters.count(Filter()) == 2
        assert timer.slept >= (count - 100 * (len(crashes) + 1)) / rate - 1


@pytest.mark.slow
async def test_a_bulk_retry_survives_crashes(place: str) -> None:
    """Done and kept are the total, there is one item for each letter, and later letters are not touched."""
    await run_with_crashes(place, 730, (1, 4, 6), rate=500)


@pytest.mark.timeout(600)
@pytest.mark.slow
async def test_ten_thousand_letters_with_three_crashes(place: str) -> None:
    """At 500 a second."""
    await run_with_crashes(place, 10_000, (9, 41, 77), rate=500)


async def test_a_stopped_action_leaves_the_rest(place: str) -> None:
    """Between two pages."""
    clock = ManualClock()
    async with emptied(place) as database:
        letters, log, outbox = await store(database, 250), SqlActionLog(database), Outbox()
        parts = ActionParts(
            letters=letters,
            log=log,
            transport=outbox,  # type: ignore[arg-type]
            environment=Environment(clock=clock, timer=MovingTimer(clock)),
            head_start=60.0,
        )
        action = await confirm(parts, new_action(ANA, ActionKind.RETRY, "shop"))
        pages: list[int] = []

        class StoppingLetters:
            """Stops the action while its first page is sent."""

            def __getattr__(self, name: str) -> object:
                return getattr(letters, name)

            async def remove(self, keys: Sequence[str]) -> int:
                assert await log.stop(action.position)
                return await letters.remove(keys)

        runner = ActionRunner(replace(parts, letters=StoppingLetters()), tick=pages.append)
        ended = await runner.run(action.position)
        assert ended.state is ActionState.STOPPED
        assert pages == [100]
        assert await letters.count(Filter()) == 150
        assert not await log.stop(action.position)
        assert (await runner.run(action.position)).state is ActionState.STOPPED


async def test_an_action_has_a_row_before_its_first_effect(place: str) -> None:
    """Without the row there is no effect."""

    class BrokenLog:
        """A log that cannot store."""

        async def begin(self, action: Action) -> Action:
            """Fail."""
            raise CommitFailed(f"no connection for {action.actor}")

    async with emptied(place) as database:
        letters, outbox = await store(database, 3), Outbox()
        parts = ActionParts(letters=letters, log=BrokenLog(), transport=outbox)  # type: ignore[arg-type]
        with pytest.raises(CommitFailed):
            await confirm(parts, new_action(ANA, ActionKind.RETRY, "shop"))
        assert await letters.count(Filter()) == 3
        assert not outbox.sent


async def test_letters_without_an_index_are_retried() -> None:
    """The keys are fixed at the confirmation."""
    clock = ManualClock()
    letters, outbox = MemoryDeadLetters(Live(), clock=clock), Outbox()
    for number in range(150):
        await letters.add(letter(number))
    parts = ActionParts(
        letters=letters,
        log=UnstoredActionLog(clock),
        transport=outbox,  # type: ignore[arg-type]
        environment=Environment(clock=clock, timer=MovingTimer(clock)),
        head_start=60.0,
    )
    action = await confirm(parts, new_action(ANA, ActionKind.RETRY, "shop"))
    await letters.add(letter(500))
    ended = await ActionRunner(parts).run(action.position)
    assert (ended.total, ended.done, len(outbox.sent)) == (150, 150, 150)
    assert await letters.count(Filter()) == 1


async def test_stored_letters_and_old_actions_expire(place: str) -> None:
    """In portions; the rows of an action go before it."""
    async with emptied(place) as database:
        letters, log = await store(database, 7), SqlActionLog(database)
        parts = ActionParts(letters=letters, log=log)
        action = await confirm(parts, new_action(ANA, ActionKind.DELETE, "shop"))
        now = parts.environment.clock.now()
        ended = await ActionRunner(parts).run(action.position)
        assert ended.done == 7
        assert await log.expire(now, actions_before=0) == 0
        assert [await log.expire(now + 2 * STORED_MS, actions_before=0, limit=5) for _ in range(3)] == [5, 2, 0]
        assert not any(item.stored for item in await all_items(log, action))
        while await log.expire(now, actions_before=1 << 60, limit=5):
            pass
        assert await log.recent() == ()
        assert await all_items(log, action) == []


async def test_queries_of_actions_use_indexes(place: str) -> None:
    """By position, and by the identity of a message."""
    async with emptied(place) as database:
        log = SqlActionLog(database)
        own = tables(database.prefix, database.schema)
        rows = [
            {
                "action": number // 100,
                "number": number,
                "letter": f"{number:032x}",
                "identity": b"%016d" % number,
                "outcome": "handled",
                "detail": "",
                "at": START,
            }
            for number in range(5000)
        ]
        async with database.writing() as connection:
            await connection.execute(insert(own.action_items), rows)
        plan = await plan_of(database, log.identifying("shop", Identity("test", "m1"), 100))
        assert f"index {database.prefix}action_items_identity" in plan
        assert not plan.scans
