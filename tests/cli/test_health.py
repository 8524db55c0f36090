"""`--health`, `status --watch` and `janitor`: what an operator and a probe see of real processes."""

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from onceonly import Endpoint, SetupError
from onceonly.cli.health import address_of
from tests.cli.probe import PATIENCE, ask, until
from tests.cli.terminal import Running, Terminal, running

LIFE = """
shop.settings = __import__("dataclasses").replace(
    shop.settings, timeout=1.0, worker=__import__("onceonly").WorkerSettings(grace=1.0),
    janitor_interval=__import__("datetime").timedelta(seconds=0.2),
)
"""


def add(onceonly: Terminal, lines: str) -> None:
    """Write more into the program."""
    program = onceonly.folder / "shop.py"
    program.write_text(program.read_text() + lines)


@contextmanager
def probed(onceonly: Terminal, *arguments: str) -> Iterator[tuple[Running, int]]:
    """Run endpoints, and give where they answer."""
    with running(onceonly, *arguments, "--health", "0") as run:
        yield run, int(run.until("health server listening").rsplit(":", 1)[1])


@pytest.mark.slow
def test_processes_that_work_are_live_and_ready_at_one_address(onceonly: Terminal) -> None:
    """Both processes, both endpoints; and not ready any more once they are being stopped."""
    with probed(onceonly, "shop:shop", "shop:mailer", "-p", "2") as (run, port):
        assert ask(port, "/live")[0] == 200
        status, body = until(port, "/ready", lambda _, body: body["status"] == "ok")
        assert (status, body["reasons"]) == (200, [])
        assert [[each["endpoint"] for each in process["endpoints"]] for process in body["processes"]] == [
            ["mailer", "shop"]
        ] * 2
        assert run.stop() == 0


@pytest.mark.slow
def test_a_program_that_hangs_is_not_live(onceonly: Terminal) -> None:
    """Half of the time after which the watchdog kills it; the next process is live again."""
    add(onceonly, LIFE)
    with probed(onceonly, "shop:shop") as (run, port):
        _, body = until(port, "/ready", lambda status, _: status == 200)
        os.kill(body["processes"][0]["pulse"]["pid"], signal.SIGSTOP)
        _, body = until(port, "/live", lambda status, _: status == 503)
        assert "hangs" in body["reasons"][0] or "has ended" in body["reasons"][0]
        run.until("process killed: event loop blocked")
        until(port, "/ready", lambda status, _: status == 200)
        assert run.stop() == 0


@pytest.mark.slow
def test_a_store_that_fails_is_not_ready_and_says_why(onceonly: Terminal) -> None:
    """Live all the same: a restart would not help."""
    add(onceonly, 'shop.settings = __import__("dataclasses").replace(shop.settings, relay_after=0.1)')
    with probed(onceonly, "shop:shop") as (run, port):
        until(port, "/ready", lambda status, _: status == 200)
        onceonly.change("shop.db", "ALTER TABLE onceonly_records RENAME TO hidden")
        _, body = until(port, "/ready", lambda status, _: status == 503)
        assert "endpoint shop, process 0: store failing for" in body["reasons"][0]
        assert "take fails" in body["reasons"][0]
        assert ask(port, "/live")[0] == 200
        onceonly.change("shop.db", "ALTER TABLE hidden RENAME TO onceonly_records")
        until(port, "/ready", lambda _, body: body["status"] == "ok")
        assert run.stop() == 0


@pytest.mark.slow
def test_a_janitor_that_fails_degrades_and_nothing_stops(onceonly: Terminal) -> None:
    """It shows in /ready and in the status, and messages are handled."""
    add(onceonly, LIFE)
    with probed(onceonly, "shop:shop") as (run, port):
        until(port, "/ready", lambda status, _: status == 200)
        onceonly.change("shop.db", "ALTER TABLE onceonly_keys RENAME COLUMN stored_at TO hidden")
        status, body = until(port, "/ready", lambda _, body: body["status"] == "degraded")
        assert status == 200
        assert "janitor failing for" in body["reasons"][0]
        assert "removing expired keys" in body["reasons"][0]
        (shown,) = onceonly("status", "shop:shop", "--json").answer
        assert shown["janitor"]["state"] == "failing"
        assert "removing expired keys" in shown["janitor"]["troubles"][0]
        assert shown["janitor"]["tasks"]["recycling slots"].get("failing_since", 0) == 0
        onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}])
        onceonly("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
        handled(onceonly)
        onceonly.change("shop.db", "ALTER TABLE onceonly_keys RENAME COLUMN hidden TO stored_at")
        until(port, "/ready", lambda _, body: body["status"] == "ok")
        assert run.stop() == 0


def handled(onceonly: Terminal) -> None:
    """Wait until the one order is there."""
    end = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(onceonly.folder / "shop.db")) as connection:
        while connection.execute("SELECT count(*) FROM orders").fetchone() != (1,):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_an_address_that_is_taken_ends_the_command(onceonly: Terminal) -> None:
    """As a wrong set-up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = onceonly("run", "shop:shop", "--health", f"127.0.0.1:{port}")
    assert done.code == 2
    assert f"cannot listen at 127.0.0.1:{port}" in done.error


@pytest.mark.parametrize(
    ("option", "own", "address"),
    [(None, (None, None), None), ("8080", (None, "9"), "127.0.0.1:8080"), (None, (None, "0.0.0.0:9"), "0.0.0.0:9")],
)
def test_the_command_line_says_where_or_the_endpoints_do(
    option: str | None, own: tuple[str | None, ...], address: str | None
) -> None:
    """Nowhere, unless somebody says so."""
    found = address_of(option, [loaded(health) for health in own])
    assert (found and str(found)) == address


def test_endpoints_that_disagree_are_told(onceonly: Terminal) -> None:
    """One command answers at one address."""
    with pytest.raises(SetupError, match="give one with --health"):
        address_of(None, [loaded("8080"), loaded("8081")])
    assert onceonly("run", "shop:shop", "--health", "nowhere").code == 2
    assert onceonly("run", "shop:shop", "--drain", "--health", "0").code == 2


def loaded(health: str | None) -> tuple[Endpoint, Any]:
    """Make an endpoint."""
    endpoint = Endpoint("shop", store="memory://a", transport="memory://a", health=health)
    return endpoint, endpoint.settings


def test_status_looks_again_and_again(onceonly: Terminal) -> None:
    """A line of JSON for each look, until Ctrl-C."""
    onceonly("janitor", "shop:shop")
    with onceonly.start("status", "shop:shop", "--watch", "--json", "--every", "0.1") as watching:
        assert watching.stdout is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        rest, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0, rest
    assert [look[0]["janitor"]["state"] for look in looks] == ["ok", "ok"]
    assert [look[0]["late_buckets"] for look in looks] == [0, 0]


def test_a_janitor_that_never_came_shows_until_one_does(onceonly: Terminal) -> None:
    """`onceonly janitor` does what is to be done, at once, and says what it did."""
    onceonly("schema", "create", "shop:shop", "--component", "store")
    onceonly("schema", "create", "shop:shop", "--component", "transport")
    (before,) = onceonly("status", "shop:shop", "--json").answer
    assert (before["janitor"]["state"], before["late_buckets"]) == ("never", 0)
    (done,) = onceonly("janitor", "shop:shop", "--json").answer
    assert (done["endpoint"], done["state"]) == ("shop", "done")
    assert list(done["tasks"]) == [
        "sending old records",
        "recycling slots",
        "removing expired claims",
        "removing old actions",
        "removing expired keys",
        "removing abandoned run markers",
        "removing ended processes",
        "shrinking the log",
    ]
    shown = onceonly("status", "shop:shop")
    assert "ok, " in shown.out
    onceonly.change("shop.db", "ALTER TABLE onceonly_keys RENAME COLUMN stored_at TO hidden")
    failed = onceonly("janitor", "shop:shop")
    assert failed.code == 1
    assert "warning: shop: janitor: removing expired keys" in failed.err


ENDLESS = """
import asyncio
import os
@shop.handler
async def endless(placed: OrderPlaced, session: AsyncSession) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
shop.settings = __import__("dataclasses").replace(
    shop.settings, retry=__import__("onceonly").Retry(immediate=0, delayed=0),
)
"""


@pytest.mark.slow
def test_a_handler_that_does_not_end_costs_its_process_and_its_message(onceonly: Terminal) -> None:
    """The process is replaced, the message alone is given up, and those behind it are handled."""
    add(onceonly, LIFE + ENDLESS)
    onceonly.write("endless.jsonl", [{"order_id": "E"}])
    onceonly.write("orders.jsonl", [{"order_id": f"A-{number}", "total": number} for number in range(20)])
    with running(onceonly, "shop:shop") as run:
        run.until("worker started")
        onceonly("send", "endless.jsonl", "--to", "shop:shop", "--type", "OrderPlaced", "--id-from", "order_id")
        run.until("process killed: handler did not end in time")
        run.until("process replaced")
        onceonly("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id")
        end = time.monotonic() + PATIENCE
        while len(onceonly.rows("shop.db", "SELECT reason FROM onceonly_dead_letters")) < 1 or (
            len(onceonly.rows("shop.db", "SELECT id FROM orders")) < 20
        ):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert run.stop() == 0
    ((reason,),) = onceonly.rows("shop.db", "SELECT reason FROM onceonly_dead_letters")
    assert "the process ended while the handler of this message was running" in reason
    assert len(onceonly.rows("shop.db", "SELECT DISTINCT id FROM orders")) == 20
