"""`onceonly leave`: what is left, until when it is needed, and whether the library can be removed."""

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onceonly import Endpoint, Off
from onceonly.assembly import open_transport
from onceonly.assembly.documents import open_documents
from onceonly.cli.relay_once import relay_endpoint_once
from onceonly.cli.remainders import _on_documents, read_departure
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from tests.cli.terminal import Done, Terminal
from tests.endpoint.left_documents import commit

SEND = ("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")


def lefts(done: Done) -> dict[str, Any]:
    """Return what is left of the only endpoint, by name."""
    (departure,) = done.answer
    assert departure["endpoint"] == "shop"
    assert departure["clear"] is (done.code == 0)
    return {each["what"]: each for each in departure["remainders"]}


def numbers(done: Done) -> dict[str, int]:
    """Return the numbers that are not 0."""
    return {what: each["count"] for what, each in lefts(done).items() if each["count"]}


def change(file: Path, statement: str, *values: object) -> None:
    """Change a database as no process of the library does."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement, values)


def dump(file: Path) -> list[str]:
    """Read all of a database."""
    with closing(sqlite3.connect(file)) as database:
        return list(database.iterdump())


def test_an_endpoint_that_did_nothing_can_go(onceonly: Terminal) -> None:
    """Also before its tables exist: a missing file is an error, which says how it is made."""
    assert onceonly("leave", "shop:shop").code == 2
    onceonly("schema", "create", "shop:shop")
    done = onceonly("leave", "shop:shop", "--json")
    assert (done.code, numbers(done)) == (0, {})
    assert "shop: nothing is left that matters" in onceonly("leave", "shop:shop").err


def test_messages_dead_letters_and_claims_are_waited_for(onceonly: Terminal) -> None:
    """Each with its number. The claims are needed until the retention after the last of them."""
    onceonly("schema", "create", "shop:shop")
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}, {"order_id": "A-2", "total": -1}])
    onceonly(*SEND)
    before = onceonly("leave", "shop:shop", "--json")
    assert (before.code, numbers(before)) == (1, {"messages in the queue": 2})
    began = datetime.fromtimestamp(int(time.time()), UTC)
    onceonly("run", "shop:shop", "--drain")
    files = [onceonly.folder / name for name in ("shop.db", "queue.db")]
    rows = [dump(file) for file in files]
    after = onceonly("leave", "shop:shop", "--json")
    assert (after.code, numbers(after)) == (1, {"dead letters": 1, "claims": 1})
    claims = lefts(after)["claims"]
    assert claims["matters"]
    assert claims["whose"] == "of all endpoints of these tables"
    expires = datetime.fromisoformat(claims["expires"])
    assert began + timedelta(days=7) <= expires <= datetime.fromtimestamp(time.time(), UTC) + timedelta(days=7)
    assert [dump(file) for file in files] == rows  # it changed nothing


def test_claims_whose_time_is_over_do_not_matter(onceonly: Terminal) -> None:
    """Whether a janitor has deleted them or not."""
    onceonly("schema", "create", "shop:shop")
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}])
    onceonly(*SEND)
    onceonly("run", "shop:shop", "--drain")
    change(onceonly.folder / "shop.db", "UPDATE onceonly_claims SET arrived_at = ?", (time.time() - 8 * 86_400) * 1000 // 1)
    done = onceonly("leave", "shop:shop", "--json")
    assert (done.code, numbers(done)) == (0, {"claims": 1})


def test_records_keys_attempts_and_actions_are_found(onceonly: Terminal) -> None:
    """Also those that only a crash or an operator leaves; of another endpoint only what does not show whose it is."""
    onceonly("schema", "create", "shop:shop")
    file, now = onceonly.folder / "shop.db", int(time.time() * 1000)
    for number, endpoint in enumerate(("shop", "shop", "other")):
        key = bytes([number]) * 16
        change(
            file, "INSERT INTO onceonly_records VALUES (?, ?, 'web', ?, '[]', ?, NULL, NULL)", key, endpoint, str(number), now
        )
        change(file, "INSERT INTO onceonly_keys VALUES (?, ?, 'a', NULL, ?)", key, key, now)
        change(file, "INSERT INTO onceonly_register VALUES (?, ?, ?, 'web', 'i', '', ?, 0)", f"a{number}", key, endpoint, now)
    columns = "at, actor, method, action, endpoint, scope, upto, reached, reason, state, total, done, kept, runner, lease"
    values = (now, "me", "cli", "retry", "shop", b"{}", 1, 0, "", "running", 1, 0, 0, "", 0)
    change(file, f"INSERT INTO onceonly_actions ({columns}) VALUES ({', '.join('?' * 15)})", *values)  # noqa: S608 - of this test
    done = onceonly("leave", "shop:shop", "--json")
    expected = {"pending records": 2, "idempotency keys": 3, "open attempts": 2, "running actions of operators": 1}
    assert (done.code, numbers(done)) == (1, expected)
    shown = onceonly("leave", "shop:shop")
    assert "onceonly relay module:endpoint" in shown.out
    assert "shop: the library is still needed" in shown.err


def test_what_a_document_store_without_a_list_holds_is_unknown() -> None:
    """It is not searched, so the library is not said to be unneeded."""
    shop = Endpoint("shop", store="s3://bucket", transport="memory://a", deduplication=Off())
    found = list(_on_documents(shop.settings, None))
    assert [(each.what, each.count, each.matters) for each in found] == [
        ("pending records", None, True),
        ("claims and keys", None, True),
        ("entities", None, True),
    ]
    assert "none when the queue stays empty" in found[0].to_do


async def test_pending_documents_are_counted_by_their_list(redis_url: str, tmp_path: Path) -> None:
    """Until a relay has sent their messages. The rest is unknown, so the library is still needed."""
    transport = f"sqlite:///{tmp_path}/queue.db"
    desk = Endpoint("desk", store=redis_url, transport=transport, relay_after=0.05)
    async with open_transport(transport, "desk") as queue, open_documents(redis_url, clock=LIVE.clock) as documents:
        await queue.declare([Topology(endpoint="ledger", commands=("Noted",))])
        await commit(documents, "a", "b")
        assert await pending_of(desk) == (2, True)
        assert "onceonly relay module:endpoint" in next(_on_documents(desk.settings, 2)).to_do
        assert (await relay_endpoint_once(desk.settings)).sent == 2
        assert await pending_of(desk) == (0, False)


async def pending_of(endpoint: Endpoint) -> tuple[int | None, bool]:
    """Return how many records are shown, and whether they matter."""
    departure = await read_departure(endpoint.settings)
    assert not departure.clear
    (found,) = (each for each in departure.remainders if each.what == "pending records")
    return found.count, found.matters
