"""Tokens in the store's own database: consumed by `begin`, issued by `commit`, on every database."""

import asyncio

import pytest

from onceonly.model.errors import ConflictError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.sql.database import Database
from onceonly.sql.store import ClaimMode, SqlStore, SqlTokens
from onceonly.sql.store.unit import SqlUnit
from tests.sql.every_database import emptied, on, somebody_waits
from tests.sql.harness import ONE_EFFECT, counted, opened, statements

BEGIN = {"sqlite": ["BEGIN IMMEDIATE"], "postgresql": [], "mysql": ["SET TRANSACTION ISOLATION"]}
TAKE = {
    "sqlite": ["DELETE FROM {}_tokens"],
    "postgresql": ["DELETE FROM {}_tokens"],
    "mysql": ["SELECT found.`key` FROM", "DELETE found FROM"],
}
NASTY = ("a", "A", "a ", "é", "e\u0301", "a\0", "x" * 20_000, "x" * 20_001)


def with_token(name: str, token: str = "") -> Message:
    """Make a message with a token, named as it is unless said otherwise."""
    return on("", name, token=token or f"t-{name}")


def store_on(database: Database) -> SqlStore:
    """Open the shop's store."""
    return SqlStore(database, "shop", claim_mode=ClaimMode.TOKENS)


async def live(database: Database, *messages: Message) -> None:
    """Make the tokens of messages live."""
    await SqlTokens(database).add([Token(each.token, "shop") for each in messages])


async def found(store: SqlStore, *asked: Message) -> dict[str, list[str]]:
    """Tell what a unit finds, and give it up."""
    unit = await store.begin(asked)
    unit.abandon()
    return parts(unit)


def parts(unit: SqlUnit) -> dict[str, list[str]]:
    """Tell what a unit found."""
    named = {
        "new": [each.id for each in unit.found.new],
        "pending": [each.identity.id for each in unit.found.pending],
        "done": [each.id for each in unit.found.done],
    }
    return {part: names for part, names in named.items() if names}


async def test_a_message_is_new_while_its_token_is_live(place: str) -> None:
    """Its commit consumes the token; a unit given up does not. Nothing is left of it, neither claim nor record."""
    a, b = with_token("a"), with_token("b")
    async with emptied(place) as database:
        store = store_on(database)
        await live(database, a)
        assert await found(store, b, a) == {"new": ["a"], "done": ["b"]}
        unit = await store.begin([a])
        await unit.commit([Record(a.identity)])
        assert await found(store, a) == {"done": ["a"]}
        assert [await counted(database, name) for name in ("tokens", "claims", "records")] == [0, 0, 0]


async def test_what_has_effects_is_pending_until_it_is_forgotten(place: str) -> None:
    """Its record gives back what was issued; the tokens are live with the commit, and stay when the record goes."""
    a, issued = with_token("a"), (Token("1", "billing"), Token("1", "mail"), Token("1", "mail"))
    record = Record(a.identity, ONE_EFFECT, token=a.token, issued=issued)
    async with emptied(place) as database:
        store = store_on(database)
        await live(database, a)
        unit = await store.begin([a])
        await unit.commit([record])
        again = await store.begin([a])
        again.abandon()
        assert (again.found.pending, again.found.new, again.found.done) == ((record,), (), ())
        assert (store.keeps(record), store.keeps(Record(a.identity))) == (True, False)
        await store.forget([record])
        assert await found(store, a) == {"done": ["a"]}
        assert await SqlTokens(database).count() == 2
        at_billing = on("", "out", token="1")  # noqa: S106 - no secret
        assert await found(SqlStore(database, "billing", claim_mode=ClaimMode.TOKENS), at_billing) == {"new": ["out"]}
        assert await found(store, at_billing) == {"done": ["out"]}


async def test_a_record_without_effects_is_kept_for_what_it_issued(place: str) -> None:
    """Whoever finds its message again must know of it."""
    a = with_token("a")
    async with emptied(place) as database:
        await live(database, a)
        unit = await store_on(database).begin([a])
        await unit.commit([Record(a.identity, issued=(Token("1", "mail"),))])
        assert await found(store_on(database), a) == {"pending": ["a"]}


async def test_a_message_left_out_is_new_again(place: str) -> None:
    """Its token is live with the commit of the others."""
    a, b, c = with_token("a"), with_token("b"), with_token("c")
    async with emptied(place) as database:
        store = store_on(database)
        await live(database, a, b, c)
        unit = await store.begin([a, b, c])
        await unit.commit([Record(b.identity)])
        assert await found(store, a, b, c) == {"new": ["a", "c"], "done": ["b"]}


async def test_one_token_is_for_one_message(place: str) -> None:
    """The first that comes with it; a message without one has no right."""
    async with emptied(place) as database:
        await live(database, with_token("a", "t"))
        asked = [with_token("b", "t"), with_token("a", "t"), on("", "c")]
        assert await found(store_on(database), *asked) == {"new": ["b"], "done": ["a", "c"]}


async def test_tokens_are_exact(place: str) -> None:
    """Whatever is in their ids, however long they are; adding twice, removing twice changes nothing."""
    asked = [with_token(f"m{number}", name) for number, name in enumerate(NASTY)]
    async with emptied(place) as database:
        tokens = SqlTokens(database)
        await live(database, *asked[::2])
        await live(database, *asked[::2])
        await tokens.add([])
        assert await tokens.count() == 4
        assert (await found(store_on(database), *asked))["new"] == [each.id for each in asked[::2]]
        for _ in range(2):
            await tokens.remove([Token(asked[0].token, "shop"), Token(asked[2].token, "billing")])
        assert (await found(store_on(database), *asked))["new"] == [each.id for each in asked[2::2]]


async def test_a_hundred_messages_cost_as_many_statements_as_one(place: str) -> None:
    """One takes the tokens (MariaDB: two, for DELETE alone would go through all of a small table); two write."""
    async with emptied(place) as database:
        name, table, store = database.dialect.name, database.prefix.removesuffix("_"), store_on(database)
        for count in (1, 100):
            asked = [with_token(f"m{count}-{number}") for number in range(count)]
            await live(database, *asked)
            with statements(database) as heard:
                unit = await store.begin(asked)
                issued = [(Token(f"out-{each.id}", "mail"),) for each in asked]
                await unit.commit([Record(each.identity, ONE_EFFECT, issued=m) for each, m in zip(asked, issued, strict=True)])
            took = [each.format(table) for each in TAKE[name]]
            rides = count == 1 and database.engine.driver == "asyncpg"  # a lone record goes with COMMIT
            recorded = [] if rides else [f"INSERT INTO {table}_records"]
            written = [f"INSERT INTO {table}_tokens", *recorded, "COMMIT"]
            assert heard == [*BEGIN[name], *took, *written]


async def test_without_a_record_nobody_can_be_fenced(place: str) -> None:
    """Which token a message had, only the message knows; so it is a ConflictError, and never an answer that is not sure."""
    a = with_token("a")
    async with emptied(place) as database:
        store = store_on(database)
        with pytest.raises(ConflictError):
            await store.fence("", a.identity)
        await live(database, a)
        assert await store.fence("", a.identity, a) is None
        unit = await store.begin([a])
        await unit.commit([Record(a.identity, ONE_EFFECT)])
        assert await store.fence("", a.identity) == Record(a.identity, ONE_EFFECT)


@pytest.mark.parametrize("decided", [True, False])
async def test_who_waits_for_a_token_finds_what_became_of_its_message(server: str, decided: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Owed, when the first one's commit left a record: the read is made after the wait. Else it is done."""
    a = with_token("a")
    async with emptied(server) as database, opened(server) as other:
        await live(database, a)
        first = await store_on(database).begin([a])
        waiting = asyncio.create_task(store_on(other).begin([a]))
        await somebody_waits(first)
        await first.commit([Record(a.identity, ONE_EFFECT if decided else ())])
        second = await waiting
        second.abandon()
        assert parts(second) == ({"pending": ["a"]} if decided else {"done": ["a"]})


async def test_who_waits_for_a_token_that_is_given_back_does_not_take_it_for_done(server: str) -> None:
    """Its message was handled by nobody: it is new, or a ConflictError has it tried again.

    Never is it acknowledged and lost.
    """
    a, b = with_token("a"), with_token("b")
    async with emptied(server) as database, opened(server) as other:
        await live(database, a, b)
        first = await store_on(database).begin([a, b])
        waiting = asyncio.create_task(found(store_on(other), a))
        await somebody_waits(first)
        await first.commit([Record(b.identity)])
        try:
            assert await waiting == {"new": ["a"]}
        except ConflictError:
            assert await found(store_on(other), a) == {"new": ["a"]}


async def test_units_with_other_tokens_do_not_wait_for_each_other(server: str) -> None:
    """However small the table is, and while tokens are looked for that are gone."""
    a, b, gone = with_token("a"), with_token("b"), with_token("gone")
    async with emptied(server) as database, opened(server) as other:
        await live(database, a, b)
        first = await store_on(database).begin([a, gone])
        async with asyncio.timeout(5):
            second = await store_on(other).begin([b, with_token("gone too")])
            await second.commit([Record(b.identity, ONE_EFFECT, issued=(Token("1", "mail"),))])
            await first.commit([Record(a.identity, ONE_EFFECT, issued=(Token("2", "mail"),))])
        assert await SqlTokens(database).count() == 2


async def test_batches_in_any_order_do_not_deadlock(server: str) -> None:
    """Each message is handled once, by whoever has its token."""
    asked = [with_token(f"m{number}") for number in range(30)]
    async with emptied(server) as database:
        await live(database, *asked)
        async with asyncio.timeout(30):
            handled = await asyncio.gather(*(work(store_on(database), asked[::way]) for way in (1, -1) for _ in range(4)))
        assert sorted(name for names in handled for name in names) == sorted(each.id for each in asked)


async def work(store: SqlStore, asked: list[Message]) -> list[str]:
    """Handle what is new, without ever trying again."""
    unit = await store.begin(asked)
    await asyncio.sleep(0)
    await unit.commit([Record(each.identity) for each in unit.found.new])
    return [each.id for each in unit.found.new]
