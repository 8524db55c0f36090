"""A process with a journal is killed between its commit and the send: the story read afterwards is right.

Handled once, by the process that was killed; sent by whoever sent it: a relay, or the worker that received the message again.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from onceonly.assembly import open_database, open_transport, schemas, temporary_transport
from onceonly.assembly.operations import open_operations
from onceonly.model.conversation import HANDLED, REDISPATCHED, RELAYED, SENT, JournalEvent, conversation_key
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.sql.schema import create, drop
from tests import ROOT
from tests.faults.journal_program import PLACE, RELAY_AFTER, told
from tests.killed_processes import python_process

pytestmark = pytest.mark.slow
PATIENCE = 60.0
FIRST = Message(id="first", source="web", type="Place", body=b'{"order": "A-1"}')


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.repeated), "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a database."""
    if request.param == "postgresql":
        return f"{request.getfixturevalue('postgresql_url')}?prefix=told_"
    return f"sqlite:///{tmp_path}/told.db"


@pytest.fixture
async def place(url: str) -> AsyncIterator[str]:
    """Return this database with all tables, where the first message waits, and a queue that takes what is sent."""
    settings = told(url).settings
    topologies = [Topology(endpoint="shop", commands=("Place",)), Topology(endpoint="billing", commands=("Charge",))]
    async with temporary_transport(settings.transport, topologies), open_database(url) as database:
        for schema in schemas("store", "journal"):
            await create(database, schema)
        async with open_transport(settings.places.transport, "shop") as transport:
            await transport.declare(topologies)
            await transport.send([Send(message=FIRST, to="shop")])
        yield url
        await drop(database, *schemas("store", "journal"))


def process(place: str, *command: str, relay_after: float = 0.1) -> AbstractAsyncContextManager[Process]:
    """Run a process, and kill it at the end."""
    environment = {**os.environ, PLACE: place, RELAY_AFTER: str(relay_after)}
    return python_process(*command, cwd=ROOT, stdout=PIPE, env=environment)


async def killed_after_the_commit(place: str) -> int:
    """Let a process handle the message and die before it sends anything; gives its number."""
    async with process(place, "tests.faults.journal_program", "after-commit") as dying, asyncio.timeout(PATIENCE):
        assert await dying.wait() == -signal.SIGKILL, "it never came to that point"
        return dying.pid


async def read_until(place: str, outcome: str) -> list[JournalEvent]:
    """Read the conversation, until it has an event with this outcome."""
    async with asyncio.timeout(PATIENCE), open_operations(told(place).settings) as opened:
        assert opened.message_journal is not None
        while True:
            events = (await opened.message_journal.conversation(conversation_key(FIRST))).events
            if any(each.outcome == outcome for each in events):
                return list(events)
            await asyncio.sleep(0.05)  # another process writes it


def by(events: list[JournalEvent], outcome: str) -> list[tuple[str, int]]:
    """Return the types and the numbers of the processes of the events with this outcome."""
    return [(each.type, int(each.process.rpartition(":")[2])) for each in events if each.outcome == outcome]


async def test_what_a_killed_process_has_committed_is_told_once_and_so_is_the_relay(place: str) -> None:
    """Crash here: 1 committed, 2 nothing sent, 3 a relay elsewhere finds the record, 4 it sends the message."""
    dead = await killed_after_the_commit(place)
    async with process(place, "onceonly", "relay", "tests.faults.journal_program:shop") as relay:
        events = await read_until(place, RELAYED)
        assert by(events, HANDLED) == [("Place", dead)]
        assert by(events, SENT) == [("Charge", dead)]
        assert by(events, RELAYED) == [("Charge", relay.pid)]
        assert by(events, REDISPATCHED) == []
    (handled,) = [each for each in events if each.outcome == HANDLED]
    (sent,) = [each for each in events if each.outcome == SENT]
    assert (handled.attempt, handled.message, sent.parent) == (1, sent.parent, handled.message)


async def test_a_copy_that_finds_the_record_is_told_and_nothing_is_handled_twice(place: str) -> None:
    """Crash here: 1 committed, 2 nothing sent, 3 the lease ends, 4 another worker finds the record, 5 it is sent."""
    dead = await killed_after_the_commit(place)
    async with process(place, "tests.faults.journal_program", relay_after=3600) as other:
        events = await read_until(place, REDISPATCHED)
        assert by(events, HANDLED) == [("Place", dead)]
        assert by(events, SENT) == [("Charge", dead)]
        assert by(events, REDISPATCHED) == [("Place", other.pid)]


async def test_what_is_killed_before_its_commit_is_handled_by_the_other_process(place: str) -> None:
    """Crash here: 1 not committed, 2 the database rolls back, 3 the lease ends, 4 it is new: the dead process told nothing."""
    async with process(place, "tests.faults.journal_program", "before-commit") as dying, asyncio.timeout(PATIENCE):
        assert await dying.wait() == -signal.SIGKILL
    async with process(place, "tests.faults.journal_program") as other:
        events = await read_until(place, HANDLED)
        assert by(events, HANDLED) == [("Place", other.pid)]
        assert by(events, SENT) == [("Charge", other.pid)]
