"""Real processes, one of them killed, over one file."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests import ROOT
from tests.sql.harness import add, look, message, orders, records, url


@asynccontextmanager
async def another_process(file: Path) -> AsyncIterator[Process]:
    """Start a process that holds a unit, and wait until it does."""
    command = (sys.executable, "-m", "tests.sql.unit_process", url(file))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_of_two_processes_that_claim_one_message_one_handles(file: Path, database: Database, store: SqlStore) -> None:
    """The other waits for the commit, and finds it pending."""
    async with another_process(file) as process:
        waiting = asyncio.create_task(store.begin([message()]))
        await process.communicate(b"commit\n")
        unit = await waiting
        unit.abandon()
        assert (unit.found.new, [each.identity for each in unit.found.pending]) == ((), [message().identity])
    assert await orders(database) == ["from-the-process"]


async def test_a_process_killed_in_a_unit_leaves_nothing(file: Path, database: Database, store: SqlStore) -> None:
    """Crash here: 1 claimed and written, 2 killed, 3 SQLite rolls back, 4 the message is new and is handled."""
    async with another_process(file) as process:
        process.kill()
        await process.wait()
        assert await look(store, message()) == {"new": ["m1"]}
        assert await orders(database) == []
        unit = await store.begin([message()])
        await add(unit, "from-here")
        await unit.commit(records(message()))
    assert await orders(database) == ["from-here"]
