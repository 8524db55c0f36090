"""What the version before the new package layout has written is drained by this one: each message takes effect once.

`filled/sqlite/` holds dumps of the SQLite files that commit 8a3cea4 wrote with `upgrade_program.py`. For each endpoint it has
handled orders 1, 2 and 3, given up -1, and failed once with 7. Orders 4 and 5 are committed and their process has died before
it sent anything. Orders 6 and 8 wait, 9 is delayed by five minutes. Copies of all that were handled have come again.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from onceonly.algorithms.delivery import deliver
from onceonly.conformance.clock import ManualClock
from onceonly.endpoint.host import host_of
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.environment import Environment
from tests.upgrades.harness import ORDERS, ask, restored

FILLED = Path(__file__).with_name("filled") / "sqlite"
FILLED_AT = 1_795_402_838_893
"""Milliseconds since 1970."""
LATER = FILLED_AT + 600_000


@pytest.fixture(name="program")
def program_on_the_filled_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Restore the files, and import the program that works on them."""
    monkeypatch.chdir(tmp_path)
    with restored(FILLED, tmp_path) as program:
        yield program


def queued(queue: str, *, of: str = "") -> list[str]:
    """List the headers of what waits in a queue, those with a word in them."""
    rows = ask("queue.db", "SELECT queue, headers FROM onceonly_messages")
    return [headers for name, headers in rows if name == queue and f'"{of}' in headers]


@pytest.mark.parametrize("name", ["history", "tokens", "marks"])
async def test_each_message_takes_effect_once(name: str, program: ModuleType) -> None:
    """By claims, by tokens and by marks elsewhere."""
    endpoint = getattr(program, name)
    assert ask(f"{name}.db", "SELECT count(*) FROM onceonly_records") == [(2,)]  # there is something to drain
    async with host_of(endpoint).opened(environment=Environment(clock=ManualClock(LATER))) as ports:
        while batch := await ports.transport.receive(100, 0):
            await deliver(batch, ports)
        letters = await ports.dead_letters.page(Filter(endpoint=name))
    handled = Counter(number for (number,) in ask(f"{name}.db", "SELECT number FROM orders"))
    assert handled == dict.fromkeys(ORDERS, 1)
    sent = queued("sink", of=name)
    assert len(set(sent)) == len(sent) == len(ORDERS)
    assert queued(name) == []
    assert ask(f"{name}.db", "SELECT count(*) FROM onceonly_records") == [(0,)]
    assert [letter.message is not None and b"-1" in letter.message.body for letter in letters] == [True]


async def test_entities_are_read_and_counted_once(program: ModuleType) -> None:
    """Two messages for one entity, one for the other; their copies count nothing."""
    async with host_of(program.history).opened(environment=Environment(clock=ManualClock(LATER))) as ports:
        while batch := await ports.transport.receive(100, 0):
            await deliver(batch, ports)
    states = [state for (state,) in ask("history.db", "SELECT state FROM onceonly_entities")]
    assert sorted(b'"orders":2' in bytes(state) for state in states) == [False, True]
