"""Entities on SQL: loaded and locked with the claim, saved with the commit, on every database."""

import asyncio

import pytest

from onceonly.model.errors import ConflictError, PermanentFailure
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.ports.store import Unit
from onceonly.sql.database import Database
from onceonly.sql.store import ClaimMode, SqlStore, SqlTokens
from onceonly.sql.store.tables import ENTITY_KEY_BYTES
from tests.sql.every_database import emptied, entities_of, on, put, somebody_waits, states, write
from tests.sql.harness import Order, add, opened, statements

KEYS = ("a", "A", "a ", "a\0", "é", "e\u0301", "🛫", "%", "\ud800", "x" * ENTITY_KEY_BYTES, "é" * (ENTITY_KEY_BYTES // 2))
BEGIN = {"sqlite": ["BEGIN IMMEDIATE"], "postgresql": [], "mysql": ["SET TRANSACTION ISOLATION"]}
LOCK = {
    "sqlite": 'SELECT onceonly_entities."key", onceonly_entities.state',
    "postgresql": "SELECT every_entities.key, every_entities.state",
    "mysql": "SELECT found.`key`, found.state",
}
UPDATE = {"sqlite": "UPDATE {}_entities SET", "postgresql": "UPDATE {}_entities SET", "mysql": "INSERT INTO {}_entities"}
INSERT = {"sqlite": "INSERT INTO {}_entities", "postgresql": "INSERT INTO {}_entities", "mysql": "INSERT IGNORE INTO"}
DELETE = {"sqlite": "DELETE FROM {}_entities", "postgresql": "DELETE FROM {}_entities", "mysql": "DELETE found FROM"}
CLAIM = {"sqlite": "INSERT INTO {}_claims", "postgresql": "INSERT INTO {}_claims", "mysql": "INSERT IGNORE INTO"}


async def test_an_entity_is_what_the_last_unit_made_of_it(place: str) -> None:
    """Not there before, then made, changed, deleted, and made again."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        for number, state in enumerate((b"1", b"2", None, b"3")):
            await put(store, {"a": state}, f"put{number}")
            assert await states(store, "a", "b") == {"a": state, "b": None}


async def test_keys_are_exact(place: str) -> None:
    """Case, blanks, normal forms, zero bytes and the last byte there is room for."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        await put(store, {key: str(number).encode() for number, key in enumerate(KEYS)})
        assert await states(store, *KEYS) == {key: str(number).encode() for number, key in enumerate(KEYS)}


async def test_a_longer_key_is_refused(place: str) -> None:
    """By name, before anything is loaded; the next unit is not held back."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        with pytest.raises(PermanentFailure, match="too long"):
            await store.begin([on("a"), on("x" + "é" * (ENTITY_KEY_BYTES // 2))])
        await put(store, {"a": b"1"})


async def test_any_bytes_come_back(place: str) -> None:
    """More of them than one statement takes, too."""
    made: dict[str, bytes | None] = {str(number): bytes(range(256)) * 4096 for number in range(9)}
    changed: dict[str, bytes | None] = {key: b"{}" + (state or b"") for key, state in made.items()}
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        await put(store, made, "first")
        assert await states(store, *made) == made
        await put(store, changed, "second")
        assert await states(store, *made) == changed


async def test_what_is_not_loaded_is_a_lookup_error(place: str) -> None:
    """Another key than those of the messages; a unit without entities has the resource as well."""
    async with emptied(place) as database:
        for messages in ([on("a")], []):
            unit = await SqlStore(database, "shop").begin(messages)
            with pytest.raises(LookupError):
                entities_of(unit.resources).read("b")
            unit.abandon()


async def test_entities_of_messages_handled_before_are_not_loaded(place: str) -> None:
    """Nobody looks at them, and whoever does should not wait for it."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        await put(store, {"a": b"1"})
        unit = await store.begin([on("a", "put-a"), on("b")])
        with pytest.raises(LookupError):
            entities_of(unit.resources).read("a")
        unit.abandon()


async def test_what_is_given_up_is_not_saved(place: str) -> None:
    """Nor what is refused."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        unit = await store.begin([on("a")])
        await write(unit, "a", b"1")
        unit.abandon()
        assert await states(store, "a") == {"a": None}


async def test_a_failed_isolated_attempt_is_undone_alone(place: str) -> None:
    """What the handlers before and after it wrote stays, also to the same entity."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        unit = await store.begin([on("a"), on("a", "fails"), on("b")], isolated=True)
        await write(unit, "a", b"1")
        with pytest.raises(ZeroDivisionError):
            await write_and_fail(unit, "a", "b")
        assert entities_of(unit.resources).read("b") is None
        await write(unit, "b", b"3")
        await unit.commit([Record(on("a").identity), Record(on("b").identity)])
        assert await states(store, "a", "b") == {"a": b"1", "b": b"3"}


async def write_and_fail(unit: Unit, *keys: str) -> None:
    """Write some entities, and fail as a handler does."""
    async with unit.resources.attempt():
        for key in keys:
            entities_of(unit.resources).write(key, b"2")
        raise ZeroDivisionError


@pytest.mark.parametrize("claim_mode", list(ClaimMode))
async def test_entities_are_saved_whatever_is_kept(place: str, claim_mode: ClaimMode) -> None:
    """With claims, tokens or nothing beside them."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop", claim_mode=claim_mode)
        message = on("a", token="t")  # noqa: S106 - no secret
        await give(database, message.token)
        unit = await store.begin([message])
        await write(unit, "a", b"1")
        await unit.commit([Record(message.identity)])
        assert await states(SqlStore(database, "shop"), "a") == {"a": b"1"}


async def give(database: Database, token: str) -> None:
    """Make a token of the shop live."""
    await SqlTokens(database).add([Token(token, "shop")])


async def test_they_are_saved_after_the_session_is_flushed(database: Database, store: SqlStore) -> None:
    """A handler's own mistake is found first, and nothing of the unit is committed."""
    await put(store, {"a": b"1"})
    unit = await store.begin([on("a"), on("b")])
    await write(unit, "a", b"2")
    await add(unit, "one")
    with statements(database) as heard:
        await unit.commit([Record(each.identity) for each in unit.found.new])
    assert heard == [f"INSERT INTO {Order.__tablename__}", "UPDATE onceonly_entities SET", "COMMIT"]


async def test_a_hundred_messages_load_in_one_statement_and_save_in_three(place: str) -> None:
    """One for those made, one for those changed, one for those deleted; SQLite's are no round trips."""
    old = [f"old{number}" for number in range(20)]
    async with emptied(place) as database:
        name, store = database.dialect.name, SqlStore(database, "shop")
        await put(store, dict.fromkeys(old, b"1"))
        asked = [on(f"{age}{number % 20}", f"m{age}{number}") for number in range(50) for age in ("old", "new")]
        with statements(database) as heard:
            unit = await store.begin(asked)
            for number in range(20):
                await write(unit, f"old{number}", None if number % 2 else b"2")
                await write(unit, f"new{number}", b"1")
            await unit.commit([Record(each.identity) for each in asked])
        table = database.prefix.removesuffix("_")
        expected = [CLAIM[name], LOCK[name], UPDATE[name], INSERT[name], DELETE[name]]
        assert heard == [*BEGIN[name], *(each.format(table) for each in expected), "COMMIT"]


async def test_an_entity_that_did_not_change_is_not_written(place: str) -> None:
    """Also when it was changed back, or made and deleted in one unit."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop")
        await put(store, {"a": b"1"})
        unit = await store.begin([on("a"), on("b")])
        for state in (b"2", b"1"):
            await write(unit, "a", state)
        for state in (b"1", None):
            await write(unit, "b", state)
        with statements(database) as heard:
            await unit.commit([Record(each.identity) for each in unit.found.new])
        assert heard == ["COMMIT"]


async def test_of_two_units_that_make_an_entity_one_wins(place: str) -> None:
    """The other is told so, and when it tries again it finds what the first one made. No update is lost."""
    async with emptied(place) as database, opened(place) as other:
        assert sorted(await asyncio.gather(*(make(each) for each in (database, other)))) == [b"1", b"2"]


async def make(database: Database) -> bytes:
    """Count up an entity from nothing, starting again after each ConflictError; gives what it was made."""
    store, name = SqlStore(database, "shop"), f"m{id(database)}"
    while True:
        try:
            unit = await store.begin([on("counter", name)])
            state = b"%d" % (int(entities_of(unit.resources).read("counter") or b"0") + 1)
            await asyncio.sleep(0)
            await write(unit, "counter", state)
            await unit.commit([Record(unit.found.new[0].identity)])
        except ConflictError:
            continue
        return state


async def test_who_makes_an_entity_that_another_has_made_gets_a_conflict(server: str) -> None:
    """Both found nothing; the second commit waits for the first, and changes nothing."""
    async with emptied(server) as database, opened(server) as other:
        first = await SqlStore(database, "shop", isolation="READ COMMITTED").begin([on("a", "first")])
        second = await SqlStore(other, "shop", isolation="READ COMMITTED").begin([on("a", "second")])
        await write(first, "a", b"1")
        await write(second, "a", b"2")
        await first.commit([Record(first.found.new[0].identity)])
        with pytest.raises(ConflictError, match="created an entity"):
            await second.commit([Record(second.found.new[0].identity)])
        assert await states(SqlStore(database, "shop"), "a") == {"a": b"1"}


async def test_who_wants_an_entity_in_use_waits_and_finds_what_became_of_it(server: str) -> None:
    """No update is lost, and no handler works on what is old."""
    async with emptied(server) as database, opened(server) as other:
        store = SqlStore(database, "shop")
        await put(store, {"a": b"1"})
        first = await store.begin([on("a", "first")])
        waiting = asyncio.create_task(SqlStore(other, "shop").begin([on("a", "second")]))
        await somebody_waits(first)
        await write(first, "a", b"2")
        await first.commit([Record(first.found.new[0].identity)])
        second = await waiting
        assert entities_of(second.resources).read("a") == b"2"
        second.abandon()


async def test_who_wants_another_entity_does_not_wait(server: str) -> None:
    """However small the table is: only the rows of a unit's own entities are locked."""
    async with emptied(server) as database, opened(server) as other:
        store = SqlStore(database, "shop")
        await put(store, {"a": b"1", "b": b"1", "c": b"1"})
        first = await store.begin([on("a"), on("b")])
        async with asyncio.timeout(5):
            await put(SqlStore(other, "shop"), {"c": b"2"}, "second")
        await write(first, "b", None)
        await first.commit([Record(each.identity) for each in first.found.new])
        assert await states(store, "a", "b", "c") == {"a": b"1", "b": None, "c": b"2"}


async def test_batches_in_any_order_do_not_deadlock(server: str) -> None:
    """Entities are locked in the order of their keys."""
    keys = [f"e{number}" for number in range(12)]
    async with emptied(server) as database:
        store = SqlStore(database, "shop")
        await put(store, dict.fromkeys(keys, b"0"))
        async with asyncio.timeout(30):
            await asyncio.gather(*(count(store, f"w{worker}", keys[::-1] if worker % 2 else keys) for worker in range(6)))
        assert await states(store, *keys) == dict.fromkeys(keys, b"18")


async def count(store: SqlStore, worker: str, keys: list[str]) -> None:
    """Count all of these up in three units."""
    for turn in range(3):
        unit = await store.begin([on(key, f"{worker}-{turn}-{key}") for key in keys])
        for key in keys:
            await write(unit, key, b"%d" % (int(entities_of(unit.resources).read(key) or b"0") + 1))
        await unit.commit([Record(each.identity) for each in unit.found.new])
