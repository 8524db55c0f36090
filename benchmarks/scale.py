"""A database as it is after a bad week: a million records, claims and queued messages, and a hundred thousand dead letters.

One row of each kind is stored as endpoints store it. The database multiplies it by one statement, so that a million rows take
seconds. Dead letters differ from each other, and are made in Python.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from msgspec import Struct
from sqlalchemy import Table, insert

from onceonly.formats.records import encode_letter
from onceonly.model.action import Action, ActionKind, ActionState
from onceonly.model.artifact import Reservation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.failure_group import failure_group
from onceonly.model.identity import claim_key
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.record import Record
from onceonly.ports.transport import Topology
from onceonly.sql.columns import RowNumber
from onceonly.sql.database import Database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA as STORE
from onceonly.sql.store import SqlDeadLetters, SqlRegister, SqlRing, SqlStore
from onceonly.sql.store.tables import Tables, tables

ENDPOINT, SOURCE, EVENT = "shop", "web", "PlaceOrder"
OTHER = "billing"
"""An endpoint beside it, with one row in a hundred."""
GROUPS = 20
AT_ONCE = 1000
_TRACE = """Traceback (most recent call last):
  File "/app/shop/orders.py", line {line}, in place_{group}
    charge(order, gateway=gateway, retries=3)
{frames}Failed{group}: the order {number} was refused by the gateway
"""
_FRAME = """  File "/usr/lib/python3/site-packages/gateway/client.py", line {line}, in post_{number}
    return self.send(request)
"""


class Scale(Struct, frozen=True, kw_only=True):
    """How many rows there are of each kind."""

    records: int = 1_000_000
    claims: int = 1_000_000
    messages: int = 1_000_000
    letters: int = 100_000
    reservations: int = 100_000
    actions: int = 10_000


def letter(number: int, at: int) -> DeadLetter:
    """Make a dead letter of about 3 kB, in one of 20 groups of failures."""
    group = number % GROUPS
    frames = "".join(_FRAME.format(line=number % 997 + each, number=each) for each in range(9))
    trace = _TRACE.format(line=40 + group, group=group, frames=frames, number=number)
    reason = f"Failed{group}: the order {number} was refused by the gateway"
    body = b'{"order_id": "A-%d", "total": 30, "lines": [%s]}' % (number, b", ".join(b'"item-%d"' % n for n in range(40)))
    message = Message(id=f"A-{number}", source=SOURCE, type=EVENT, body=body, headers=(("tenant", "blue"),))
    failure = Failure(kind=FailureKind.EXCEPTION, reason=reason, traceback=trace, at=at, handler="shop.place")
    name = ENDPOINT if number % 100 else OTHER
    headers = (("ce-id", message.id), ("ce-source", SOURCE), ("tenant", "blue"))
    return DeadLetter(
        endpoint=name, reason=reason, headers=headers, body=body, message=message, attempts=8, history=(failure,), at=at
    )


async def fill(database: Database, scale: Scale, *, say: Callable[[str], object] = lambda _: None) -> None:
    """Create all tables, and fill them. They must be empty or missing. Claims are kept for the default of seven days.

    Raises CommitFailed, OutcomeUnknown, SetupError.
    """
    now = database.clock.now()
    for schema in (STORE, QUEUE):
        await create(database, schema)
    own = tables(database.prefix, database.schema)
    queued = QUEUE.tables(database.prefix, database.schema).tables[f"{database.prefix}messages"]
    await _store_one_of_each(database)
    words = WORDS[database.dialect.name]
    claimed = words.ring_key.format(at=f"({now} - n)")
    copies: tuple[tuple[Table, int, dict[str, str]], ...] = (
        (own.records, scale.records, {"key": words.key, "id": words.exact, "stored_at": f"{now} - n", "claim": claimed}),
        (queued, scale.messages, {"visible_at": f"{now} - n"}),
        (
            own.register,
            scale.reservations,
            {"attempt": words.octets, "key": words.key, "id": words.exact, "opened_at": f"{now} - n"},
        ),
        (own.actions, scale.actions, {"at": f"{now} - n * 1000"}),
    )
    for table, count, values in copies:
        await _multiply(database, table, values, count - 1)
        say(f"{count:,} rows in {table.name}")
    await _fill_claims(database, own, scale.claims, now)
    say(f"{scale.claims:,} claims")
    await _fill_letters(database, own.dead_letters, scale.letters, now)
    say(f"{scale.letters:,} dead letters")
    await _analyze(database, [*own.metadata.sorted_tables, queued])


class Words(Struct, frozen=True, kw_only=True):
    """How a database makes a series of numbers `n`, and values of them: keys, keys in a time bucket at {at}, texts, hashes."""

    series: str
    key: str
    ring_key: str
    exact: str
    octets: str
    fingerprint: str
    analyze: str


WORDS: Mapping[str, Words] = {
    "postgresql": Words(
        series="generate_series(1, {count}) AS series (n)",
        key="md5('k' || n)::uuid",
        ring_key="(lpad(to_hex({at}), 12, '0') || substr(md5(n::text), 1, 20))::uuid",
        exact="convert_to('A-' || n, 'UTF8')",
        octets="convert_to('A-' || n, 'UTF8')",
        fingerprint="n",
        analyze="VACUUM ANALYZE",
    ),
    "mysql": Words(
        series="(SELECT seq AS n FROM seq_1_to_{count}) AS series",
        key="UNHEX(MD5(CONCAT('k', n)))",
        ring_key="UNHEX(CONCAT(LPAD(HEX({at}), 12, '0'), SUBSTR(MD5(n), 1, 20)))",
        exact="CONCAT('A-', n)",
        octets="CONCAT('A-', n)",
        fingerprint="UNHEX(LPAD(HEX(n), 16, '0'))",
        analyze="ANALYZE TABLE",
    ),
    "sqlite": Words(
        series="(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s) AS series",
        key="randomblob(16)",
        ring_key="digits(printf('%012x', {at}) || hex(randomblob(10)))",
        exact="'A-' || n",
        octets="CAST('A-' || n AS BLOB)",
        fingerprint="randomblob(8)",
        analyze="ANALYZE",
    ),
}


async def _store_one_of_each(database: Database) -> None:
    """Store a pending record, a message, an open attempt and an action, as endpoints and operators do."""
    message = Message(id="A-0", source=SOURCE, type=EVENT, body=b'{"order_id": "A-0", "total": 30}')
    transport = SqlTransport(database, ENDPOINT, clock=database.clock)
    await transport.declare([Topology(endpoint=name, commands=(EVENT,)) for name in (ENDPOINT, OTHER)])
    await transport.send([Send(message=message, to=ENDPOINT)])
    store = SqlStore(database, ENDPOINT)
    unit = await store.begin([message])
    await unit.commit([Record(message.identity, (Send(message=message, to=OTHER),))])
    await SqlRegister(database, ENDPOINT).open([Reservation(identity=message.identity, unit="", attempt="A-0")])
    done = Action(actor="ana", method="basic", action=ActionKind.RETRY, endpoint=ENDPOINT, state=ActionState.DONE)
    await SqlDeadLetters(database).actions.begin(done)


async def _multiply(database: Database, table: Table, values: Mapping[str, str], count: int) -> None:
    """Insert `count` copies of the only row of a table, with these values in some columns."""
    quote = database.engine.dialect.identifier_preparer.quote
    names = [each.name for each in table.columns if each.name in values or not isinstance(each.type, RowNumber)]
    copied = ", ".join(values.get(name, quote(name)) for name in names)
    series = WORDS[database.dialect.name].series.format(count=count)
    await _insert(database, table, map(quote, names), f"{copied} FROM {series}, {table.name}")


async def _fill_claims(database: Database, own: Tables, count: int, now: int) -> None:
    """Insert nine tenths of the claims into the time buckets that have begun, in equal parts, and one tenth outside of them."""
    words, key = WORDS[database.dialect.name], database.engine.dialect.identifier_preparer.quote("key")
    begun = [each for each in await SqlRing(database).buckets() if 0 < each.start < now]
    outside = count // 10
    some = (count - outside) // len(begun)
    for bucket in begun:
        step = max(1, (min(bucket.end, now) - bucket.start) // (some + 1))
        claim = words.ring_key.format(at=f"{bucket.start} + n * {step}")
        chosen = f"{claim}, {words.fingerprint} FROM {words.series.format(count=some)}"
        await _insert(database, own.buckets[bucket.number], (key, "fingerprint"), chosen)
    chosen = f"{words.key}, {words.fingerprint}, {now} - n FROM {words.series.format(count=outside)}"
    await _insert(database, own.claims, (key, "fingerprint", "arrived_at"), chosen)


async def _insert(database: Database, table: Table, columns: Iterable[str], chosen: str) -> None:
    async with database.writing() as connection:
        if database.dialect.name == "sqlite":
            raw = (await connection.get_raw_connection()).driver_connection
            await cast("Any", raw).create_function("digits", 1, bytes.fromhex)
        await connection.exec_driver_sql(f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {chosen}")


async def _fill_letters(database: Database, table: Table, count: int, now: int) -> None:
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        rows = [_letter_row(letter(number, now - (count - number) * 1000)) for number in numbers]
        async with database.writing() as connection:
            await connection.execute(insert(table), rows)


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return the row that `SqlDeadLetters.add` stores."""
    return {
        "key": letter.key,
        "endpoint": letter.endpoint,
        "type": EVENT,
        "reason": letter.reason,
        "stored_at": letter.at,
        "letter": encode_letter(letter),
        "failure": failure_group(letter).key,
        "identity": claim_key(letter.endpoint, letter.message.identity) if letter.message else None,
    }


async def _analyze(database: Database, filled: Iterable[Table]) -> None:
    """Let the database count the rows. It would do so itself after some minutes."""
    async with database.autocommitting() as connection:
        for table in filled:
            await connection.exec_driver_sql(f"{WORDS[database.dialect.name].analyze} {table.name}")
