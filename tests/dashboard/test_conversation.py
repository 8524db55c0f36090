"""The conversation page: from the journal of endpoints that run, with the tree of causes, and what it says without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from onceonly import Context, Endpoint, Journal, SetupError
from onceonly.dashboard import dashboard, loopback_only
from onceonly.dashboard.views.conversation import tree_of
from onceonly.model.conversation import HANDLED, SENT, JournalEvent
from onceonly.model.identity import Identity
from tests.dashboard.serving import endpoint
from tests.dashboard.test_gate import asking

JSON = {"accept": "application/json"}


@dataclass
class Place:
    """A command."""

    order: str


@dataclass
class Charge:
    """A command that follows."""

    order: str


@asynccontextmanager
async def a_story(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Identity]]:
    """Let one endpoint handle a message and the one that its handler sends; gives a client, and the first message."""
    url = f"sqlite:///{folder}/shop.db"
    shop = Endpoint("shop", store=url, transport=url, journal=Journal())
    seen: list[Identity] = []
    handled, stop = asyncio.Event(), asyncio.Event()

    async def place(command: Place, context: Context) -> None:
        seen.append(Identity(context.message.source, context.message.id))
        context.send(Charge(command.order), to="shop")

    async def charge(_command: Charge) -> None:
        handled.set()

    shop.handler(place)
    shop.handler(charge)
    running = asyncio.create_task(shop.run(stop))
    async with shop.transaction() as transaction:
        transaction.send(Place("<b>A-1</b>"), to="shop")
    await handled.wait()
    stop.set()  # what is in progress is committed first
    await running
    async with asking(dashboard(shop, endpoint("other"), auth=loopback_only())) as client:
        yield client, seen[0]


def event(name: str, parent: str = "", outcome: str = HANDLED, at: int = 1) -> JournalEvent:
    """Make an event."""
    return JournalEvent(
        conversation=b"c",
        at=at,
        message=name.encode(),
        parent=parent.encode() or None,
        endpoint="shop",
        type="T",
        outcome=outcome,
        identity=Identity("s", name),
        process="p",
    )


def test_a_tree_has_each_message_once_below_its_cause() -> None:
    """Siblings stay in order; a missing parent makes a root."""
    events = [
        event("a"),
        event("b", "a", SENT),
        event("c", "a", SENT),
        event("d", "b", SENT),
        event("b"),
        event("x", "gone", SENT),
    ]
    rows = tree_of(events)
    assert [(row["id"], row["depth"]) for row in rows] == [("a", 0), ("b", 1), ("d", 2), ("c", 1), ("x", 0)]
    assert [each["outcome"] for each in rows[1]["events"]] == [SENT, HANDLED]


def test_a_cycle_and_a_deep_chain_end() -> None:
    """Also what no honest sender makes is shown, once."""
    assert {row["id"] for row in tree_of([event("a", "b", SENT), event("b", "a", SENT)])} == {"a", "b"}
    chain = [event("0")] + [event(str(number), str(number - 1), SENT) for number in range(1, 1000)]
    assert tree_of(chain)[-1]["depth"] == 999


async def test_a_message_leads_to_its_conversation(tmp_path: Path) -> None:
    """Find shows when it was handled, and the page has the messages that it caused, also in JSON."""
    async with a_story(tmp_path) as (client, first):
        found = (await client.get("/find", params=first._asdict(), headers=JSON)).json()["answers"]
        assert [(each["outcome"]) for each in found[0]["events"]] == [HANDLED]
        assert (found[1]["journal"], found[1]["events"]) == (False, [])
        path = f"/c/{found[0]['conversation']}"
        told = (await client.get(path, headers=JSON)).json()
        place, charge = told["messages"]
        assert (place["id"], place["depth"], charge["depth"]) == (first.id, 0, 1)
        assert [each["outcome"] for each in place["events"]] == [HANDLED]
        assert [each["outcome"] for each in charge["events"]] == [SENT, HANDLED]
        assert [each["journal"] for each in told["endpoints"]] == [True, False]
        page = await client.get(path)
        assert page.status_code == 200
        assert first.id in page.text
        assert "other has no journal" in page.text
        assert path in (await client.get("/find", params=first._asdict())).text


@pytest.mark.parametrize("wrong", [{"journal": Journal()}, {"journal": True}])
def test_a_journal_needs_a_sql_store(wrong: dict[str, Any]) -> None:
    """The error says what to do."""
    with pytest.raises(SetupError, match=r"journal (needs a SQL store|must be Journal)"):
        Endpoint("shop", store="memory://", transport="memory://", **wrong)


@pytest.mark.parametrize("values", [{"keep": timedelta(seconds=1)}, {"rows": 0}, {"rows": True}])
def test_limits_of_the_setting_are_checked(values: dict[str, object]) -> None:
    """In the words of the setting."""
    with pytest.raises(SetupError, match=r"journal: (keep|rows) must be"):
        Journal(**values)  # type: ignore[arg-type]


async def test_other_keys_are_not_found() -> None:
    """A key that is no key gets 404, in HTML as well."""
    async with asking(dashboard(endpoint(), auth=loopback_only())) as client:
        for key in ("x", "00", "zz" * 16):
            assert (await client.get(f"/c/{key}")).status_code == 404
        page = await client.get(f"/c/{'00' * 16}")
        assert (page.status_code, "journal=Journal()" in page.text) == (200, True)
