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
from msgspec.structs import replace

from onceonly import Context, Endpoint, Journal, SetupError
from onceonly.model.conversation import (
    DEAD_LETTER,
    DUPLICATE,
    HANDLED,
    RELAYED,
    RETRIED,
    SENT,
    JournalEntry,
    JournalEvent,
    conversation_key,
)
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly_dashboard import dashboard, loopback_only
from onceonly_dashboard.views.messages import tree_of
from tests.dashboard.serving import NOW, endpoint, letter, store, tell
from tests.dashboard.test_gate import open_client

JSON = {"accept": "application/json"}


@dataclass
class Place:
    """A command."""

    order: str


@dataclass
class Charge:
    """A command that follows."""

    order: str


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time to answer: a page without an answer has no link."""
    monkeypatch.setattr("onceonly_dashboard.probes.ANSWER_SECONDS", 60.0)
    monkeypatch.setattr("onceonly_dashboard.probes.SERVER_SECONDS", 61.0)


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
    async with open_client(dashboard(shop, endpoint("other"), auth=loopback_only())) as client:
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
        assert [each["outcome"] for each in found[0]["events"] if each["outcome"] != RELAYED] == [HANDLED]
        assert (found[1]["journal"], found[1]["events"]) == (False, [])
        path = f"/c/{found[0]['conversation']}"
        told = (await client.get(path, headers=JSON)).json()
        place, charge = told["messages"]
        assert (place["id"], place["depth"], charge["depth"]) == (first.id, 0, 1)
        assert [each["outcome"] for each in place["events"] if each["outcome"] != RELAYED] == [HANDLED]
        assert [each["outcome"] for each in charge["events"]] == [SENT, HANDLED]
        assert [each["journal"] for each in told["endpoints"]] == [True, False]
        page = await client.get(path)
        assert page.status_code == 200
        assert first.id in page.text
        assert "other has no journal" in page.text
        assert path in (await client.get("/find", params=first._asdict())).text


def journalled(folder: Path) -> Endpoint:
    """Make an endpoint with a journal on a file."""
    url = f"sqlite:///{folder}/told.db"
    return endpoint("shop", store=url, transport=url, journal=Journal())


async def test_a_dead_letter_and_its_conversation_lead_to_each_other(tmp_path: Path) -> None:
    """With attempts, errors, durations, and the reason from the letter, as `redact=` lets it be shown."""
    shop, dead = journalled(tmp_path), letter()
    await tell(shop, *failures(dead))
    await store(shop, [dead])
    assert dead.message is not None
    path = f"/c/{conversation_key(dead.message).hex()}"
    async with open_client(dashboard(shop, auth=loopback_only(), redact=without_body)) as client:
        (told,) = (await client.get(path, headers=JSON)).json()["messages"]
        assert [(each["outcome"], each["attempt"], each["error"], each["duration"]) for each in told["events"]] == [
            (RETRIED, 1, "ValueError", 1500),
            (DUPLICATE, None, "", None),
            (DEAD_LETTER, 2, "ValueError", 2_500_000),
        ]
        assert [each["exact"] for each in told["events"]] == [False, False, False]
        assert told["events"][2]["reason"] == "ValueError: hidden by redact="
        page = (await client.get(path)).text
        for words in ("retried", "attempt 1, 1.5 ms: ValueError", "attempt 2, 2.5 s: ValueError", "hidden by redact="):
            assert words in page
        assert "-30" not in page
        assert "best effort" in page
        assert f'href="/dead/{dead.key}"' in page
        assert f'href="{path}"' in (await client.get(f"/dead/{dead.key}")).text
        found = (await client.get("/find", params={"source": "web", "id": "A-1"})).text
        assert f'href="{path}"' in found
        assert "attempt 2, 2.5 s: ValueError" in found
        assert "best effort" in found


async def test_a_dead_letter_that_is_gone_has_no_link(tmp_path: Path) -> None:
    """It was retried or deleted; one of another endpoint is not shown either."""
    shop, dead, foreign = journalled(tmp_path), letter(), letter("other", number=2)
    await tell(shop, *failures(dead), entry(foreign, DEAD_LETTER, letter=foreign.key))
    await store(shop, [foreign])
    assert dead.message is not None
    assert foreign.message is not None
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        for each in (dead.message, foreign.message):
            page = (await client.get(f"/c/{conversation_key(each).hex()}")).text
            assert "The dead letter is gone." in page
            assert "/dead/" not in page
            assert "total is negative" not in page


async def test_a_dead_letter_without_events_leads_to_its_conversation(tmp_path: Path) -> None:
    """Its events may be too old, or were lost; without a journal there is no link."""
    shop, dead = journalled(tmp_path), letter()
    await tell(shop)
    await store(shop, [dead])
    assert dead.message is not None
    path = f"/c/{conversation_key(dead.message).hex()}"
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        assert path in (await client.get("/find", params={"source": "web", "id": "A-1"})).text
    other = endpoint()
    async with other.opened(), open_client(dashboard(other, auth=loopback_only())) as client:
        await store(other, [dead])
        page = (await client.get(f"/dead/{dead.key}")).text
        assert ("/c/" in page, "/find?source=web&amp;id=A-1" in page) == (False, True)


async def test_names_that_no_sender_should_choose_are_shown(tmp_path: Path) -> None:
    """Escaped, and whatever their characters."""
    shop = journalled(tmp_path)
    text = "\x00<b>\u202e" + "x" * 3000
    odd = Message(id=text, source=text, type=text, body=b"")
    await tell(shop, JournalEntry(message=odd, outcome=RETRIED, at=NOW, attempt=1, error=text))
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        page = await client.get(f"/c/{conversation_key(odd).hex()}")
        assert (page.status_code, "<b>" in page.text, "&lt;b&gt;" in page.text) == (200, False, True)


def failures(dead: DeadLetter) -> tuple[JournalEntry, ...]:
    """Tell of a failure, a duplicate and the end."""
    return (
        entry(dead, RETRIED, attempt=1, duration=1500, error="ValueError"),
        entry(dead, DUPLICATE),
        entry(dead, DEAD_LETTER, attempt=2, duration=2_500_000, error="ValueError", letter=dead.key),
    )


def entry(of: DeadLetter, outcome: str, **values: Any) -> JournalEntry:
    """Tell one thing of a letter's message."""
    assert of.message is not None
    return JournalEntry(message=of.message, outcome=outcome, at=NOW, **values)


def without_body(message: Message) -> Message:
    """Hide what may be in the texts of errors as well."""
    return replace(message, body=b"")


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
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        for key in ("x", "00", "zz" * 16):
            assert (await client.get(f"/c/{key}")).status_code == 404
        page = await client.get(f"/c/{'00' * 16}")
        assert (page.status_code, "journal=Journal()" in page.text) == (200, True)
