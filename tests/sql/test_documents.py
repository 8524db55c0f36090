"""Documents in a SQL database beyond what their suite asks: expiry, strange versions, many large ones, what check says."""

from pathlib import Path

import pytest

from onceonly.model.errors import SchemaMissing
from onceonly.ports.documents import Change
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import DOCUMENTS_SCHEMA, SqlDocuments
from onceonly.sql.store.documents import LIMITS
from onceonly_conformance.clock import START, ManualClock
from tests.sql.harness import opened, statements, url


@pytest.fixture
async def documents(database: Database) -> SqlDocuments:
    """Make the table."""
    await create(database, DOCUMENTS_SCHEMA)
    return SqlDocuments(database)


async def test_what_has_expired_is_removed_when_asked(file: Path) -> None:
    """So much at once as is asked for, and nothing else."""
    clock = ManualClock()
    async with opened(url(file), clock=clock) as database:
        await create(database, DOCUMENTS_SCHEMA)
        documents = SqlDocuments(database)
        expiries = {"never": 0, "later": START + 3_000, "now": START + 2_000, "first": START + 1, "second": START + 2}
        await documents.save([Change(key=key, body=b"", expires=expires) for key, expires in expiries.items()])
        clock.advance(2_000)
        assert [await documents.remove_expired(limit=1) for _ in range(2)] == [1, 1]
        assert await documents.remove_expired() == 0
        assert await documents.keys("") == ("later", "never", "now")


async def test_a_document_written_again_after_its_expiry_stays(file: Path) -> None:
    """Its time was taken away between the look and the removal, or long before."""
    clock = ManualClock()
    async with opened(url(file), clock=clock) as database:
        await create(database, DOCUMENTS_SCHEMA)
        documents = SqlDocuments(database)
        (version,) = await documents.save([Change(key="k", body=b"1", expires=START + 1)])
        clock.advance(2)
        await documents.save([Change(key="k", body=b"2", expected=version or "")])
        assert await documents.remove_expired() == 0
        assert (await documents.load(["k"]))["k"].body == b"2"


@pytest.mark.parametrize("version", ["1", "no version", "00", "0" * 32, "f" * 32, "ff" * 17, "é"])
async def test_a_version_of_somebody_else_is_refused(documents: SqlDocuments, version: str) -> None:
    """It is no error: nobody has it."""
    await documents.save([Change(key="k", body=b"first")])
    for body in (b"second", None):
        changes = [Change(key="k", body=body, expected=version), Change(key="l", body=body, expected=version)]
        assert await documents.save(changes[:1]) == (None,)
        assert await documents.save(changes) == (None, None)
    assert (await documents.load(["k"]))["k"].body == b"first"


async def test_many_of_the_largest_are_written_in_several_statements(database: Database, documents: SqlDocuments) -> None:
    """All in one database transaction; a server takes only so much at once."""
    changes = [Change(key=f"k{number}", body=b"%d" % number * LIMITS.body) for number in range(3)]
    with statements(database) as said:
        answers = await documents.save(changes)
    assert [it.split()[0] for it in said if "documents" in it] == ["INSERT"] * 3
    assert {key: it.body for key, it in (await documents.load(["k0", "k1", "k2"])).items()} == {
        it.key: it.body for it in changes
    }
    assert len(set(answers)) == 1


async def test_what_is_small_is_written_in_few_statements(database: Database, documents: SqlDocuments) -> None:
    """A thousand in one statement for each kind of change, and a look that locks before them."""
    keys = [f"{number:04}" for number in range(1000)]
    (version, *_) = await documents.save([Change(key=key, body=b"{}") for key in keys])
    with statements(database) as said:
        await documents.save(
            [Change(key=f"{key}/new", body=b"{}") for key in keys]
            + [Change(key=key, body=b"[]", expected=version or "") for key in keys[::2]]
            + [Change(key=key, body=None, expected=version or "") for key in keys[1::2]]
        )
    assert [it.split()[0] for it in said if "documents" in it] == ["SELECT", "DELETE", "UPDATE", "INSERT"]


async def test_a_missing_table_says_what_to_run(database: Database) -> None:
    """Other tables of this library are there."""
    with pytest.raises(SchemaMissing, match="onceonly schema create"):
        await SqlDocuments(database).check()
