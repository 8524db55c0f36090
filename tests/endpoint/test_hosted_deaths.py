"""A process of a host that dies: nothing is lost or doubled, and a message that kills its process is given up."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from onceonly.adapters.memory.run_markers import MemoryRunMarkers
from onceonly.adapters.memory.world import Live
from onceonly.assembly import open_database
from onceonly.hosted.run_markers import HostedRunMarkers
from onceonly.model.identity import Identity
from onceonly.ports.run_markers import BEGUN, StartResult
from tests.endpoint.harness import StandingClock
from tests.endpoint.hosted_harness import TWICE, declare_listener, letters, pending, received, rows, sql_shop
from tests.endpoint.hosted_program import DEADLY, EXIT, FAILING, message

ROOT = Path(__file__).parents[2]
MOST_DELIVERIES = 10


async def run_process(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Let a process handle one delivery. Returns its exit code and the outcomes that it printed."""
    program = [sys.executable, "-m", "tests.endpoint.hosted_program", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output) if output else []


async def pass_time(store: str) -> None:
    """Make the markers of runs that have not ended as old as those of dead processes."""
    async with open_database(store) as database, database.writing() as connection:
        await connection.execute(text("UPDATE onceonly_starts SET until = 0"))


@pytest.mark.slow
async def test_a_message_that_kills_its_process_is_given_up(tmp_path: Path) -> None:
    """It takes one delivery without a marker, and as many with one as `Retry` allows. The other message is handled."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    shop, ids, deaths = sql_shop(store, queue, retry=TWICE), [DEADLY, "innocent"], 0
    await declare_listener(queue)
    for deliveries in range(1, MOST_DELIVERIES):
        code, outcomes = await run_process(store, queue, "-", deliveries, *ids)
        if code == 0:
            break
        assert code == EXIT
        deaths += 1
        await pass_time(store)
    assert [(each["is_settled"], each["is_dead"]) for each in outcomes] == [(True, True), (True, False)]
    assert deaths == 1 + 3
    (letter,) = await letters(shop)
    assert letter.reason == "the process ended while the handler of this message was running"
    assert await rows(store) == ["innocent"]
    assert len(await received(queue)) == 1


async def test_a_run_that_may_still_be_in_progress_is_waited_for(tmp_path: Path) -> None:
    """The host delivered again while a marker is young: its process may only be slow. The delivery is not counted."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    shop = sql_shop(store, queue, retry=TWICE)
    assert (await run_process(store, queue, "-", 2, DEADLY))[0] == EXIT
    async with shop.hosted() as hosted:
        (outcome,) = await hosted.handle([message(DEADLY, 3)])
    assert not outcome.is_settled
    assert outcome.retry_after is not None
    assert outcome.retry_after > 0
    assert await letters(shop) == []


async def test_deaths_are_counted_in_the_marker() -> None:
    """Without that the host's growing count makes each marker look like one whose death was counted already."""
    identity, clock = Identity("web", "a"), StandingClock()

    def markers() -> MemoryRunMarkers:
        return MemoryRunMarkers(Live(), "shop", lasts=0.0, clock=clock)

    plain = markers()
    assert [await plain.begin(identity, host_count) for host_count in range(1, 9)] == [BEGUN] * 8
    asked: list[int] = []

    def gives_up(_: Identity, deaths: int) -> bool:
        asked.append(deaths)
        return deaths == 2

    counted = HostedRunMarkers(markers(), gives_up)
    answers = [await counted.begin(identity, host_count) for host_count in range(1, 5)]
    assert answers == [BEGUN, BEGUN, BEGUN, StartResult(died=2)]
    assert asked == [0, 1, 2]
    await counted.begin(identity, 5)
    await counted.finish(identity)
    assert await counted.begin(identity, 6) == BEGUN  # it ended


HANDLED = (
    "after-receive",
    "after-begin",
    "after-handle",
    "before-commit",
    "after-commit",
    "before-dispatch",
    "after-dispatch",
    "before-forget",
    "after-forget",
    "before-ack",
    "after-ack",
)


@pytest.mark.parametrize("point", HANDLED)
@pytest.mark.slow
async def test_a_redelivery_finishes_what_a_killed_process_left(tmp_path: Path, point: str) -> None:
    """At every crash point: one row, one id on the wire, no record left, and the host acknowledges."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    shop = sql_shop(store, queue, retry=TWICE)
    await declare_listener(queue)
    code, outcomes = await run_process(store, queue, point, 1, "a", "b")
    assert (code, outcomes) == (-signal.SIGKILL, [])
    async with shop.hosted() as hosted:
        again = await hosted.handle([message("a", 2), message("b", 2)])
        assert [(outcome.is_settled, outcome.is_dead) for outcome in again] == [(True, False)] * 2
        assert await pending(shop) == 0
    assert await rows(store) == ["a", "b"]
    assert len(set(await received(queue))) == 2


@pytest.mark.parametrize("point", ["before-retry-copy", "after-retry-copy", "before-dead-letter", "after-dead-letter"])
@pytest.mark.slow
async def test_a_redelivery_finishes_a_retry_or_a_dead_letter(tmp_path: Path, point: str) -> None:
    """The host still has the message, and one letter is stored at the end."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    shop = sql_shop(store, queue, retry=TWICE)
    first = 1 if "retry" in point else 3
    assert (await run_process(store, queue, point, first, FAILING))[0] == -signal.SIGKILL
    for deliveries in range(first + 1, MOST_DELIVERIES):
        _, outcomes = await run_process(store, queue, "-", deliveries, FAILING)
        if outcomes[0]["is_settled"]:
            break
    assert outcomes[0]["is_dead"]
    (letter,) = await letters(shop)
    assert letter.reason == "ValueError: no stock"
