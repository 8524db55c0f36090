"""Text and bytes come back as they were, whatever `standard_conforming_strings` and `client_encoding` are.

Values are parameters, or in the text of a statement in hexadecimal digits only; see `onceonly.adapters.postgresql.statements`.
"""

import random
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from sqlalchemy import make_url, text

from onceonly.adapters.postgresql.statements import _literal
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SqlTransport
from onceonly.sql.store import SqlDeadLetters, SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.adapters.postgresql.test_setup import engine_with
from tests.fuzzing import Inputs
from tests.servers.available import on_postgresql
from tests.sql.harness import ONE_EFFECT, look

HOSTILE = (
    "it's \\' \\\\ \\0 %s %(x)s :y ?",
    "é€\N{CJK UNIFIED IDEOGRAPH-7E17}' \\",
    "\x00'\\",
    "'); SELECT 1; --",
    "\\",
    "E'\\x41'",
    "$$",
)
SETTINGS = [
    {"standard_conforming_strings": conforming, "backslash_quote": "on", "client_encoding": encoding}
    for conforming in ("off", "on")
    for encoding in ("UTF8", "LATIN1", "SJIS", "SQL_ASCII")
]


@pytest.fixture(params=SETTINGS, ids=lambda given: f"{given['standard_conforming_strings']}-{given['client_encoding']}")
async def opened_so(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """Open the tables with sessions that begin with these settings, which the database has."""
    name = make_url(url).database
    await on_postgresql(*[f'ALTER DATABASE "{name}" SET {key} = {value}' for key, value in request.param.items()], url=url)
    place = await open_database(url, clock=ManualClock())
    try:
        yield place
    finally:
        await place.close()
        await on_postgresql(*[f'ALTER DATABASE "{name}" RESET {key}' for key in request.param], url=url)


@pytest.mark.usefixtures("database")
async def test_text_and_bytes_come_back(opened_so: Database) -> None:
    """Alone and in batches: a lone record is written in the text of a statement."""
    await round_trip(opened_so)


@pytest.mark.usefixtures("database")
async def test_text_and_bytes_come_back_on_a_users_engine(url: str) -> None:
    """Whose sessions have the settings themselves. With psycopg they are refused: it would store other bytes or text."""
    for settings in ({"standard_conforming_strings": "off", "backslash_quote": "on"}, {"client_encoding": "LATIN1"}):
        engine = engine_with(url, **settings)
        place = await open_database(engine, clock=ManualClock())
        try:
            if "psycopg" in url:
                with pytest.raises(SetupError, match=f"PostgreSQL's {next(iter(settings))} is .* in these sessions"):
                    await place.ready()
            elif "client_encoding" not in settings:  # asyncpg itself chooses it
                await round_trip(place)
        finally:
            await place.close()
            await engine.dispose()


async def round_trip(place: Database) -> None:
    """Write all kinds of rows, and read them."""
    store, transport, letters = SqlStore(place, "shop"), SqlTransport(place, "shop"), SqlDeadLetters(place)
    asked = [
        replace(
            message(f"{number} {name}"), source=name, subject=name, type="a'\\b", body=name.encode("utf-8", "surrogatepass")
        )
        for number, name in enumerate(HOSTILE)
    ]
    for each in asked:
        unit = await store.begin([each])
        await unit.commit([Record(each.identity, (replace(ONE_EFFECT[0], message=each),))])
        assert await look(store, each) == {"pending": [each.id]}
    again = await store.begin(asked)
    again.abandon()
    assert {record.effects[0].message for record in again.found.pending} == set(asked)
    await transport.declare([Topology(endpoint="shop", events=())])
    await transport.send([Send(message=each, to="shop") for each in asked])
    assert sorted(each.body for each in await transport.receive(1000, 0)) == sorted(each.body for each in asked)
    for name in HOSTILE:
        letter = DeadLetter(endpoint="shop", reason=name, headers=((name, name),), body=b"'\\", message=None, attempts=1)
        await letters.add(letter)
        assert await letters.get(letter.key) == replace(letter, at=(await letters.get(letter.key) or letter).at)


async def test_fuzz_values_in_the_text_of_statements(database: Database) -> None:
    """What is written there means the same in each mode, also where backslashes escape."""
    inputs = Inputs()
    async with database.reading() as connection:
        for _ in inputs.rounds(200):
            values = [
                inputs.choice(
                    (inputs.clean("ab'\\\n\"$%é", 20).replace("\0", ""), inputs.data()[:40], None, inputs.getrandbits(60))
                )
                for _ in range(200)
            ]
            setting = inputs.choice(("on", "off"))
            await connection.execute(text(f"SET LOCAL standard_conforming_strings = {setting}"))
            words = ", ".join(_literal(value) for value in values)
            assert not {*words} & {"\\", '"', "%", "$"}
            found = (await connection.exec_driver_sql(f"SELECT {words}")).one()
            assert [bytes(each) if isinstance(each, memoryview) else each for each in found] == values


def test_no_word_depends_on_a_setting() -> None:
    """Each literal has letters and digits only."""
    inputs = random.Random(38)  # noqa: S311 - inputs
    for value in (*HOSTILE, *("".join(inputs.choices("a'\\é", k=5)) for _ in range(100))):
        literals = _literal(value).split("'")[1::2]
        assert all(literal.replace("-", "").isalnum() or not literal for literal in literals)
