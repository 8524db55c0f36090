"""Values in the text of statements: whatever `sql_mode` is, they come back as they were, and none of it is executed.

asyncmy writes parameters into the statement itself. It escapes text by the mode of the session, and bytes by backslashes alone.
"""

import random
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace
from sqlalchemy import LargeBinary, bindparam, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlDeadLetters, SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.adapters.mariadb.harness import place
from tests.fuzzing import inputs
from tests.servers.available import on_mariadb
from tests.sql.harness import ONE_EFFECT, attempt, connection_of, look, opened

STRICT = "STRICT_TRANS_TABLES"
MODES = (STRICT, f"{STRICT},NO_BACKSLASH_ESCAPES", f"{STRICT},ANSI_QUOTES", f"{STRICT},ANSI_QUOTES,NO_BACKSLASH_ESCAPES")
ESCAPING = b"'), (X'00'); SELECT 'executed' -- \\'\\\\\" \x00\x1a\r\n\xff\xbf\x5c' %s %(x)s :y ?"
HOSTILE = (ESCAPING, b"", b"'", b"\\", b"\\'", b"''", b"'\\", b"\xbf'", b"\xbf\\'", bytes(range(256)))


@pytest.fixture(params=MODES)
async def server(own: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Set the mode that new sessions begin with."""
    await on_mariadb(f"SET GLOBAL sql_mode = '{request.param}'", url=own)
    yield own
    await on_mariadb("SET GLOBAL sql_mode = DEFAULT", url=own)


@pytest.fixture
async def opened_here(server: str) -> AsyncIterator[Database]:
    """Open new tables of the store and of the queue."""
    async with opened(place(server)) as database:
        await create(database, SCHEMA)
        await create(database, QUEUE)
        yield database
    async with opened(place(server)) as database, database.writing() as connection:
        for name in ("claims", "records", "dead_letters", "messages", "queues"):
            await connection.exec_driver_sql(f"DELETE FROM own_{name}")  # noqa: S608 - the tests' own tables


async def test_the_librarys_own_bytes_come_back(opened_here: Database) -> None:
    """Keys of claims are hashes, so each has a quote once in a while. Bodies are what others send."""
    asked = [replace(message(f"it's \\{number}"), body=body) for number, body in enumerate(HOSTILE)]
    asked += [message(f"m{number}") for number in range(200)]
    store = SqlStore(opened_here, "shop")
    unit = await store.begin(asked)
    effects = [replace(ONE_EFFECT[0], message=each) for each in asked]
    await unit.commit([Record(each.identity, (effect,)) for each, effect in zip(asked, effects, strict=True)])
    again = await store.begin(asked)
    again.abandon()
    assert {record.identity: record.effects for record in again.found.pending} == {
        each.identity: (effect,) for each, effect in zip(asked, effects, strict=True)
    }

    transport = SqlTransport(opened_here, "shop")
    await transport.declare([Topology(endpoint="shop", events=())])
    await transport.send([Send(message=each, to="shop") for each in asked])
    assert [each.body for each in await transport.receive(1000, 0)] == [each.body for each in asked]

    letters = SqlDeadLetters(opened_here)
    for body in HOSTILE:
        letter = DeadLetter(endpoint="shop", reason="it's \\", headers=(("a'\\", "\\'"),), body=body, message=None, attempts=1)
        await letters.add(letter)
        assert await letters.get(letter.key) == replace(letter, at=(await letters.get(letter.key) or letter).at)


@pytest.mark.parametrize("mode", MODES)
async def test_a_handlers_bytes_come_back_in_the_mode_that_it_sets(database: Database, mode: str) -> None:
    """The mode may change between two statements, also from inside a statement that is not looked at."""
    store = SqlStore(database, "shop")
    unit = await store.begin([message("a")])
    rng = random.Random(1)  # noqa: S311 - inputs
    values = [*HOSTILE, *(bytes(rng.choices(b"'\\\"\x00\xbf;-a", k=rng.randrange(12))) for _ in range(inputs() // 4))]

    async def handler() -> None:
        connection = connection_of(unit.resources)
        await connection.execute(text(f"SET SESSION sql_mode = '{mode}'"))
        typed = text("SELECT :value AS value, :words AS words").bindparams(bindparam("value", type_=LargeBinary))
        for start in range(0, len(values), 1000):
            several = values[start : start + 1000]
            marks = ", ".join(["%s"] * len(several))
            assert tuple((await connection.exec_driver_sql(f"SELECT {marks}", tuple(several))).one()) == tuple(several)
        for value in HOSTILE:
            words = value.decode("utf-8", "backslashreplace")
            assert tuple((await connection.execute(typed, {"value": value, "words": words})).one()) == (value, words)
            for kind in (bytearray, memoryview):
                assert (await connection.exec_driver_sql("SELECT %s", (kind(value),))).scalar_one() == value
        within = "SELECT 'a''b' IN %s, 'a' IN %s, %s"
        found = (await connection.exec_driver_sql(within, (("a'b", "c"), ("a'b", b"'"), PurePosixPath("a'\\b")))).one()
        assert tuple(found) == (1, 0, "a'\\b")

    await attempt(unit, handler)
    await unit.commit([Record(message("a").identity, ONE_EFFECT)])
    assert await look(store, message("a")) == {"pending": ["a"]}


async def test_the_driver_alone_lets_bytes_out_of_their_literal(own: str) -> None:
    """This library's literals can go when it does not any more."""
    engine = create_async_engine(make_url(own).set(drivername="mysql+asyncmy"))
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'")
            assert (await connection.exec_driver_sql("SELECT %s", (b"' OR 1=1 -- ",))).scalar_one() == 1
    finally:
        await engine.dispose()


async def test_a_users_engine_that_writes_bytes_wrongly_is_refused(own: str) -> None:
    """Handlers use its connections. The server is looked at again while the endpoint runs."""
    engine = create_async_engine(make_url(own).set(drivername="mysql+asyncmy"))
    try:
        for mode in MODES:
            await on_mariadb(f"SET GLOBAL sql_mode = '{mode}'", url=own)
            await engine.dispose()
            database = await open_database(engine, clock=ManualClock())
            if "NO_BACKSLASH" in mode:
                with pytest.raises(SetupError, match=r"NO_BACKSLASH_ESCAPES.*Remove the mode, or give onceonly the URL"):
                    await database.ready()
            else:
                await database.ready()
    finally:
        await on_mariadb("SET GLOBAL sql_mode = DEFAULT", url=own)
        await engine.dispose()


async def test_names_stay_names_when_the_mode_changes(own: str) -> None:
    """SQLAlchemy looks at ANSI_QUOTES once. In the other mode a name in double quotes is a text, and `key` is one."""
    for first, then in ((f"{STRICT},ANSI_QUOTES", STRICT), (STRICT, f"{STRICT},ANSI_QUOTES")):
        await on_mariadb(f"SET GLOBAL sql_mode = '{first}'", url=own)
        try:
            async with opened(place(own, prefix="ansi_")) as database:
                await create(database, SCHEMA)
                store = SqlStore(database, "shop")
                await database.engine.dispose()
                await on_mariadb(f"SET GLOBAL sql_mode = '{then}'", url=own)
                unit = await store.begin([message(first)])
                await unit.commit([Record(message(first).identity)])
                assert await look(store, message(first)) == {"done": [first]}
        finally:
            await on_mariadb("SET GLOBAL sql_mode = DEFAULT", url=own)


@pytest.mark.parametrize(
    "statement",
    [
        "SET NAMES gbk",
        "set names 'sjis'",
        "SET @a = 1, NAMES big5",
        "SET CHARACTER SET gbk",
        "SET SESSION character_set_client = gbk",
        "SET @@session.character_set_client = 'gbk'",
        "/*!50000 SET NAMES gbk */",
        "SELECT 1; SET NAMES gbk",
        "SET\tNAMES gbk",
    ],
)
async def test_a_handler_may_not_choose_another_character_set(database: Database, statement: str) -> None:
    """In GBK the last byte of a character may be a backslash, which the driver has written to escape a quote."""
    store = SqlStore(database, "shop")
    unit = await store.begin([message("a")])

    async def handler() -> None:
        await connection_of(unit.resources).execute(text(statement.replace(":", "\\:")))

    try:
        with pytest.raises(RuntimeError, match=r"is not allowed in a handler.*The driver writes UTF-8"):
            await attempt(unit, handler)
    finally:
        unit.abandon()


async def test_the_character_set_of_new_connections_is_set(own: str) -> None:
    """The server can execute a statement first, for users without all privileges."""
    await on_mariadb(
        "SET GLOBAL init_connect = 'SET NAMES gbk'",
        "CREATE OR REPLACE USER plain@127.0.0.1",
        "GRANT ALL ON test.* TO plain@127.0.0.1",
        url=own,
    )
    try:
        async with opened(place(own.replace("root@", "plain@"), prefix="charset_")) as database:
            await create(database, SCHEMA)
            store, odd = SqlStore(database, "shop"), message("縗' \\")
            unit = await store.begin([odd])
            await unit.commit([Record(odd.identity, ONE_EFFECT)])
            assert await look(store, odd) == {"pending": [odd.id]}
    finally:
        await on_mariadb("SET GLOBAL init_connect = DEFAULT", "DROP USER plain@127.0.0.1", url=own)
