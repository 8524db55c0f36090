"""Documents on MariaDB: what its packets hold."""

from pathlib import Path

import pytest
from sqlalchemy import delete

from onceonly.ports.documents import Change
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import DOCUMENTS_SCHEMA, SqlDocuments
from onceonly.sql.store.documents import LIMITS, documents_table
from tests.servers.available import on_mariadb
from tests.servers.mariadb import own_mariadb
from tests.sql.harness import opened


@pytest.fixture
async def documents(database: Database) -> SqlDocuments:
    """Make the table, and empty it."""
    await create(database, DOCUMENTS_SCHEMA)
    async with database.writing() as connection:
        await connection.execute(delete(documents_table(database.prefix)))
    return SqlDocuments(database)


async def test_many_of_the_largest_are_held_at_once(documents: SqlDocuments) -> None:
    """Also when every byte of them is written as two, inserted and replaced."""
    versions = dict.fromkeys(("a", "b", "c"), "")
    for body in (b"\0" * LIMITS.body, b"'" * LIMITS.body):
        answers = await documents.save([Change(key=key, body=body, expected=version) for key, version in versions.items()])
        versions = {key: answer or "" for key, answer in zip(versions, answers, strict=True)}
        assert {it.body for it in (await documents.load([*versions])).values()} == {body}


async def test_many_of_the_longest_keys_are_held_at_once(documents: SqlDocuments) -> None:
    """Inserted, replaced and deleted, in as many statements as it takes."""
    versions = {f"{number:05}".ljust(LIMITS.key, "'"): "" for number in range(2_500)}
    for body in (b"{}", b"[]", None):
        answers = await documents.save([Change(key=key, body=body, expected=version) for key, version in versions.items()])
        assert None not in answers
        versions = {key: answer or "" for key, answer in zip(versions, answers, strict=True)}
        assert len(await documents.load([*versions])) == (0 if body is None else len(versions))


async def test_a_server_with_small_packets_is_warned_of(tmp_path: Path) -> None:
    """The largest documents would be refused there; those that fit are held."""
    with own_mariadb(tmp_path) as url:
        for packet, warnings in ((16 << 20, 0), (4 << 20, 1)):
            await on_mariadb(f"SET GLOBAL max_allowed_packet = {packet}", url=url)
            async with opened(url) as database:
                await create(database, DOCUMENTS_SCHEMA)
                documents = SqlDocuments(database)
                found = await documents.check()
                assert [str(packet) in warning for warning in found] == [True] * warnings
                (answer,) = await documents.save([Change(key=f"{packet}", body=b"x" * (3 << 19))])
                assert answer
