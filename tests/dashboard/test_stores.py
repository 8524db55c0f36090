"""The pages on each kind of store with each deduplication: all of them open, and say what the store cannot know."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import DedupStore, History, Off, Tokens
from onceonly.assembly import open_database
from onceonly.assembly.documents import create as create_documents
from onceonly.sql.schema import create
from onceonly.sql.store import DOCUMENTS_SCHEMA, SCHEMA
from onceonly_dashboard import dashboard, loopback_only
from tests.dashboard.serving import endpoint, letter, sampled, store
from tests.dashboard.test_gate import open_client

JSON = {"accept": "application/json"}
DATABASES = ("sqlite", "postgresql", "mariadb")
DOCUMENTS = ("mongodb", "dynamodb", "redis", "s3")
KINDS = ("memory", *DATABASES, *DOCUMENTS)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    name = f"d{uuid4().hex[:12]}"
    match kind:
        case "memory":
            return f"memory://{name}"
        case "sqlite":
            return f"sqlite:///{tmp_path}/shop.db"
        case "postgresql" | "mariadb":
            return f"{request.getfixturevalue(f'{kind}_url')}?prefix={name}_"
        case "mongodb":
            return f"{request.getfixturevalue('mongodb_server')}/{name}"
        case "dynamodb" | "s3":
            place = (
                f"dynamodb://test:test@eu-central-1/{name}?"
                if kind == "dynamodb"
                else f"s3://test:test@{name}/docs?region=eu-central-1&"
            )
            return f"{place}endpoint={request.getfixturevalue('ministack_endpoint')}"
        case _:
            return str(request.getfixturevalue("redis_url"))


async def create_all(kind: str, url: str, beside: str) -> None:
    """Create the tables or the place of a store, and those of a database beside it, as `onceonly schema create` does."""
    if kind in DOCUMENTS:
        await create_documents(url)
    elif kind in DATABASES:
        async with open_database(url) as database:
            await create(database, SCHEMA)
    if beside.startswith("sqlite"):
        async with open_database(beside) as database:
            await create(database, DOCUMENTS_SCHEMA)


def deduplication(name: str, kind: str, tmp_path: Path) -> Any:
    """Return a deduplication."""
    beside = f"memory://{uuid4().hex}" if kind == "memory" else f"sqlite:///{tmp_path}/beside.db"
    made: dict[str, Any] = {
        "History": History(),
        "Off": Off(),
        "DedupStore": DedupStore(beside),
        "Tokens": Tokens("" if kind in DATABASES else beside),
    }
    return made[name]


PAGES = (
    "/",
    "/e/shop",
    "/dead",
    "/dead/g/all?endpoint=shop",
    f"/dead/{letter().key}",
    "/find?source=web&id=A-1",
    "/find?source=web&id=A-2",
    "/pending",
    "/claims",
    "/settings",
    "/actions",
    "/act/retry?endpoint=shop&group=all",
)
NOT_SEARCHED, NO_RECORDS = "this store cannot be searched", "no records with deduplication=Off()"
NO_RETENTION = "This endpoint does not recognize messages by claims in its store."
NOT_STORED = "unknown: this endpoint does not store which messages were handled"


def pending_unknown(kind: str, name: str) -> str:
    """Return why the number of pending records is unknown, or "" if it is known."""
    if name == "Off":
        return NO_RECORDS
    return NOT_SEARCHED if kind == "s3" else ""


def answer_for_unknown_id(kind: str, name: str) -> str:
    """Return what is known about a message that the store does not have. Never that it was not handled."""
    if name == "DedupStore" or (name == "History" and kind not in {"memory", *DOCUMENTS}):
        return "no claim within the retention"
    if name == "History" and kind != "memory":
        return "not determined: an entity may have handled it"
    return NOT_STORED


def why_no_buckets(kind: str, name: str) -> str:
    """Return why there is no picture of claims."""
    if name != "History":
        return NO_RETENTION
    if kind in DATABASES:
        return "No message has been handled yet: the first one divides the time."
    return "This store keeps the history of messages without time buckets."


COMBINATIONS = [
    (kind, name)
    for kind in KINDS
    for name in ("History", "Off", "DedupStore", "Tokens")
    if (kind, name) != ("memory", "Off")  # the store in memory always has claims, and refuses it
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), COMBINATIONS)
async def test_every_page_opens(kind: str, url: str, name: str, tmp_path: Path) -> None:
    """And each number that the store cannot know has its reason."""
    chosen = deduplication(name, kind, tmp_path)
    await create_all(kind, url, getattr(chosen, "url", ""))
    shop = endpoint(store=url, deduplication=chosen)
    async with AsyncExitStack() as stack:
        if kind == "memory":  # it lasts as long as something has it open
            await stack.enter_async_context(shop.opened())
        await store(shop, [letter()])
        app: Any = dashboard(shop, auth=loopback_only())
        client = await stack.enter_async_context(open_client(app))
        await client.get("/")
        await sampled(app)
        found: dict[str, Any] = {}
        for page in PAGES:
            response = await client.get(page, headers=JSON)
            assert (response.status_code, (await client.get(page)).status_code) == (200, 200), (page, response.text)
            found[page] = response.json()
    (row,) = found["/"]["endpoints"]
    why = pending_unknown(kind, name)
    assert row["dead"]["value"] == 1
    assert (row["pending"].get("why", ""), row["oldest"]["why"]) == (why, why or "nothing is pending")
    assert [each for each in row["findings"] if each["level"] == "failing"] == []
    (groups,) = found["/dead"]["endpoints"]
    assert (groups["problem"], groups["total"], groups["complete"]) == ("", 1, True)
    answers = [found[f"/find?source=web&id={each}"]["answers"][0] for each in ("A-1", "A-2")]
    assert [(each["problem"], each["found"]) for each in answers] == [
        ("", "dead letter"),
        ("", answer_for_unknown_id(kind, name)),
    ]
    (pending,) = found["/pending"]["endpoints"]
    assert (pending["problem"], pending["searched"]) == ("", not why)
    (claims,) = found["/claims"]["endpoints"]
    assert (claims["problem"], claims["picture"], claims["why"]) == ("", None, why_no_buckets(kind, name))
