"""Rows of a store that cannot be read: records and reports of processes. They cost themselves."""

import random

import pytest
from sqlalchemy import insert, update
from sqlalchemy.dialects import sqlite

from onceonly.formats.records import encode_record
from onceonly.model.health import ProcessReport
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.sql.columns import TextAsBytes, Undecodable
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.reports import SqlPresence
from onceonly.sql.store.tables import tables
from onceonly_conformance.samples import message
from tests.fuzzing import inputs
from tests.sql.every_database import emptied
from tests.sql.harness import ONE_EFFECT

UNREADABLE = (b"", b"\x00", b"\x01", b"\x01\xc1", b"\x01" + b"\x91" * 5000, b"\x02\x93", b"\x03", b"\xff\xff", b"\x01\xff")


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_a_record_that_cannot_be_read_stops_no_relay(
    store: SqlStore, database: Database, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays in the table, and is logged once."""
    bad, good = message(f"bad{stored.hex()[:20]}"), message("good")
    unit = await store.begin([bad, good])
    await unit.commit([Record(each.identity, ONE_EFFECT) for each in (bad, good)])
    records = tables(database.prefix).records
    async with database.writing() as connection:
        key = claim_key("shop", bad.identity)
        await connection.execute(update(records).where(records.c.key == key).values(effects=stored, stored_at=0))
    for limit in (1, 10):
        assert [each.identity.id for each in await store.undispatched(1 << 52, limit)] == ["good"]
    assert [each.identity.id for each in await store.take(1 << 52, 10, lease=1000, after=None)] == ["good"]
    (entry,) = [each for each in caplog.records if getattr(each, "event", "") == "record unreadable: its messages wait"]
    assert entry.id == ascii(bad.id)


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_a_copy_of_a_message_with_an_unreadable_record_stops_no_batch(
    store: SqlStore, database: Database, stored: bytes
) -> None:
    """It is done: its claim proves that it was handled, and its record stays for the relay."""
    bad, good, new = message("bad"), message("good"), message("new")
    unit = await store.begin([bad, good])
    await unit.commit([Record(each.identity, ONE_EFFECT) for each in (bad, good)])
    records = tables(database.prefix).records
    async with database.writing() as connection:
        key = claim_key("shop", bad.identity)
        await connection.execute(update(records).where(records.c.key == key).values(effects=stored))
    again = await store.begin([bad, good, new])
    found = again.found
    assert (found.new, found.done, [each.identity.id for each in found.pending]) == ((new,), (bad,), ["good"])
    again.abandon()
    async with database.reading() as connection:
        assert len((await connection.execute(records.select())).all()) == 2


async def test_records_are_listed_behind_many_that_cannot_be_read(store: SqlStore, database: Database) -> None:
    """Also if these are as old as the others, or older, and are more than are asked for."""
    names = [f"m{number}" for number in range(12)]
    unit = await store.begin([message(name) for name in names])
    await unit.commit([Record(message(name).identity, ONE_EFFECT) for name in names])
    records = tables(database.prefix).records
    keys = sorted((claim_key("shop", message(name).identity), name) for name in names)
    async with database.writing() as connection:
        for index, (key, _) in enumerate(keys):
            values = {"stored_at": index // 5} | ({"effects": b""} if index % 3 else {})
            await connection.execute(update(records).where(records.c.key == key).values(values))
    for limit in range(1, 14):
        found = [each.identity.id for each in await store.undispatched(1 << 52, limit)]
        assert found == [name for index, (_, name) in enumerate(keys) if not index % 3][:limit]
    assert [each.identity.id for each in await store.undispatched(1, 2)] == [keys[0][1], keys[3][1]]


async def test_an_identity_that_is_not_text_stops_no_relay(server: str) -> None:
    """PostgreSQL and MariaDB store identities as bytes, which another program may write."""
    async with emptied(server) as database:
        store = SqlStore(database, "shop")
        bad, good = message("bad"), message("good")
        unit = await store.begin([bad, good])
        await unit.commit([Record(each.identity, ONE_EFFECT) for each in (bad, good)])
        records = tables(database.prefix).records
        change = update(records).where(records.c.key == claim_key("shop", bad.identity))
        plain = encode_record(Record(bad.identity, ONE_EFFECT))
        async with database.writing() as connection:
            for values in ({"effects": b"\xff\x00'"}, {"source": records.c.effects}, {"effects": plain}):
                await connection.execute(change.values(values))
        assert [each.identity.id for each in await store.undispatched(1 << 52, 10)] == ["good"]


def test_fuzz_text_of_bytes() -> None:
    """Whatever bytes are stored, a text is read, and text comes back as it was."""
    rng, kind = random.Random(38), TextAsBytes()  # noqa: S311 - inputs
    for _ in range(inputs()):
        raw = changed("plain π \ud800 text".encode(errors="surrogatepass"), rng)
        found = kind.process_result_value(raw, sqlite.dialect())
        assert isinstance(found, str)
        assert isinstance(found, Undecodable) or kind.process_bind_param(found, sqlite.dialect()) == raw


async def test_fuzz_records(store: SqlStore, database: Database) -> None:
    """Cut and changed bytes of a record, and bytes that never were one."""
    rng = random.Random(38)  # noqa: S311 - inputs
    unit = await store.begin([message("good")])
    await unit.commit([Record(message("good").identity, ONE_EFFECT)])
    records = tables(database.prefix).records
    async with database.reading() as connection:
        (plain,) = [row.effects for row in await connection.execute(records.select())]
    for start in range(0, inputs(), 500):
        async with database.writing() as connection:
            await connection.execute(
                insert(records),
                [
                    {"key": number.to_bytes(16, "big"), "endpoint": "shop", "source": "s", "id": f"{number}", "stored_at": 0}
                    | {"effects": changed(plain, rng)}
                    for number in range(start + 1, start + 501)
                ],
            )
        assert "good" in [each.identity.id for each in await store.undispatched(1 << 52, 1000)]
        async with database.writing() as connection:
            await connection.execute(records.delete().where(records.c.source == "s"))


def changed(plain: bytes, rng: random.Random) -> bytes:
    """Cut bytes, change some, or make others."""
    if rng.random() < 0.2:
        return bytes([rng.randrange(5)]) + rng.randbytes(rng.randrange(40))
    found = bytearray(plain[: rng.randrange(len(plain) + 1)] if rng.random() < 0.3 else plain)
    for _ in range(rng.randrange(1, 4)):
        if found:
            found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


async def test_fuzz_reports_of_processes(store: SqlStore, database: Database) -> None:  # noqa: ARG001 - it makes the tables
    """One report that cannot be read hides no other. SQLite stores a value of any type in any column."""
    presence = SqlPresence(database, "shop")
    await presence.report(ProcessReport(process="good", host="h", pid=1, version="1", counters={"handled": 1}))
    rng = random.Random(38)  # noqa: S311 - inputs
    table = tables(database.prefix).processes
    names = ", ".join(column.name for column in table.c)
    marks = ", ".join("?" * len(table.c))
    values: list[object] = [
        0,
        -1,
        2**63 - 1,
        0.5,
        1e300,
        "",
        "a\0'",
        "{}",
        "[]",
        '{"a": 1e999}',
        "[" * 3000,
        b"\xff",
        b"",
        b"{}",
        b"[1]",
    ]
    for start in range(0, inputs(), 500):
        rows = [
            tuple(
                {"endpoint": "shop", "process": f"p{start}-{number}"}.get(column.name, rng.choice(values)) for column in table.c
            )
            for number in range(500)
        ]
        async with database.writing() as connection:
            await connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", rows)  # noqa: S608 - our own names
        assert "good" in [each.report.process for each in await presence.read()]
        async with database.writing() as connection:
            await connection.execute(table.delete().where(table.c.process != "good"))
