"""Servers that are away are waited for by workers, and told by all other commands; a wrong set-up ends them all."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from uuid import uuid4

import pytest

from onceonly.assembly import temporary_transport
from onceonly.cli import targets
from onceonly.ports.transport import Topology
from tests.cli.terminal import Terminal, running
from tests.servers.available import POSTGRESQL, RABBITMQ, need
from tests.servers.forwarding import Door

pytestmark = pytest.mark.slow

WAITS, WORKS = "endpoint cannot start yet, retrying with backoff", "endpoint can start now"


@pytest.fixture
def broker() -> Iterator[Door]:
    """Return a closed door before RabbitMQ, with a prefix of its own."""
    door = Door(f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}.")
    yield door
    with door.opened():
        asyncio.run(remove(door.url))


async def remove(url: str) -> None:
    """Delete what an endpoint left behind a prefix."""
    async with temporary_transport(url, [Topology(endpoint="shop", events=("PlaceOrder",))]):
        pass


@pytest.mark.slow
def test_a_worker_outlives_a_broker_that_is_away_at_start(onceonly: Terminal, broker: Door) -> None:
    """It says so once, whatever the number of processes, and works as soon as the broker is there."""
    with running(onceonly, "shop:shop", "--transport", broker.url, "-p", "2") as run:
        said = run.until(WAITS)
        assert f"endpoint 'shop' cannot use its transport amqp://127.0.0.1:{broker.port}/: cannot connect to amqp://" in said
        assert "guest" not in said
        with broker.opened():
            run.until(WORKS)
            run.until("worker started", times=2)
            assert run.stop() == 0
    assert run.said.count(WAITS) == 1


@pytest.mark.parametrize("options", [(), ("--drain",)])
def test_a_worker_outlives_a_database_that_is_away_at_start(
    onceonly: Terminal, postgresql_url: str, options: tuple[str, ...]
) -> None:
    """Its tables are looked at as soon as it is there."""
    assert onceonly("schema", "create", postgresql_url, "--component", "store").code == 0
    door = Door(postgresql_url)
    with running(onceonly, "shop:shop", "--store", door.url, *options) as run:
        assert "cannot use its store postgresql://127.0.0.1" in run.until(WAITS)
        with door.opened():
            run.until(WORKS)
            run.until("worker started")
            assert options or run.stop() == 0
            run.end()
    assert run.process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), ("--drain",)])
def test_a_signal_ends_the_waiting(onceonly: Terminal, number: signal.Signals, options: tuple[str, ...]) -> None:
    """At once, without a traceback. The exit code is 0, but for `--drain`, which has not drained."""
    with running(onceonly, "shop:shop", "--store", "postgresql://127.0.0.1:1/nothing", *options) as run:
        run.until(WAITS)
        assert run.stop(number) == (1 if options else 0)
    assert "Traceback" not in run.said
    assert "process started" not in run.said


def wrong_setups() -> dict[str, tuple[str, str, str]]:
    """Return wrong set-ups: the option, its URL as far as it depends on no fixture, and what is said."""
    broker = RABBITMQ.url
    return {
        "password": ("--transport", broker.replace("guest:guest@", "guest:wrong@"), "rejected this user or password"),
        "vhost": ("--transport", broker.rstrip("/") + "/nowhere", "vhost nowhere not found. Use an existing virtual host"),
        "database": (
            "--store",
            POSTGRESQL.url.rpartition("/")[0] + "/nowhere",
            "this database does not exist on the server: create it",
        ),
        "tables": ("--store", "", "of the store do not exist: run `onceonly schema create shop:shop --store "),
        "scheme": ("--store", "nosql://host/", "unknown URL scheme 'nosql'"),
    }


@pytest.mark.parametrize("what", ["password", "vhost", "database", "tables", "scheme"])
def test_a_wrong_set_up_ends_a_worker_at_once(onceonly: Terminal, postgresql_url: str, what: str) -> None:
    """Exit code 2, one error, nothing is waited for."""
    need(RABBITMQ)
    option, url, words = wrong_setups()[what]
    with running(onceonly, "shop:shop", option, url or f"{postgresql_url}?prefix=none_") as run:
        said = run.end()
    assert run.process.returncode == 2
    assert said.startswith("error: ")
    assert said.count("error: ") == 1
    assert words in said
    assert WAITS not in said
    assert "wrong@" not in said


def test_a_set_up_that_shows_to_be_wrong_later_ends_it_then(onceonly: Terminal) -> None:
    """The server is back, and knows no such virtual host."""
    door = Door(need(RABBITMQ).rstrip("/") + "/nowhere")
    with running(onceonly, "shop:shop", "--transport", door.url) as run:
        run.until(WAITS)
        with door.opened():
            said = run.end()
    assert run.process.returncode == 2
    assert "error: endpoint 'shop' cannot use its transport amqp://127.0.0.1" in said
    assert "vhost nowhere not found" in said


COMMANDS = {
    "send": ("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id"),
    "send by name": ("send", "orders.jsonl", "--to", "shop", "--type", "PlaceOrder", "--id-from", "order_id"),
    "status": ("status", "shop:shop"),
    "retry": ("dead", "retry", "shop:shop", "--all"),
    "list": ("dead", "list", "shop:shop"),
    "purge": ("dead", "purge", "shop:shop", "--all"),
    "export": ("dead", "export", "shop:shop"),
    "topology": ("topology", "create", "shop:shop"),
    "schema": ("schema", "create", "shop:shop"),
}
OF_THE_STORE = ("list", "purge", "export", "schema", "retry")


@pytest.mark.parametrize("command", ["send", "send by name", "status", "topology"])
def test_a_command_says_that_the_broker_is_away(onceonly: Terminal, command: str) -> None:
    """At once, with exit code 1 and the place, without its password; nobody waits here."""
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}])
    done = onceonly(*COMMANDS[command], "--transport", "amqp://me:secret@127.0.0.1:1/")
    assert (done.code, done.out) == (1, "")
    assert "cannot connect to amqp://127.0.0.1:1/: 111" in done.error
    assert "secret" not in done.err


@pytest.mark.parametrize("command", OF_THE_STORE)
def test_a_command_says_that_the_database_is_away(onceonly: Terminal, command: str) -> None:
    """At once, with exit code 1 and the place, without its password."""
    onceonly("topology", "create", "shop:shop")
    done = onceonly(*COMMANDS[command], "--store", "postgresql://me:secret@127.0.0.1:1/d")
    assert (done.code, done.out) == (1, "")
    assert "postgresql://127.0.0.1:1/d: " in done.error
    assert "secret" not in done.err


def test_status_shows_the_numbers_of_the_database_while_the_broker_is_away(onceonly: Terminal) -> None:
    """What cannot be read is missing, and the reason is printed once."""
    onceonly("schema", "create", "shop:shop")
    away = ("status", "shop:shop", "--transport", "amqp://me:secret@127.0.0.1:1/")
    done, as_json = onceonly(*away), onceonly(*away, "--json")
    assert (done.code, as_json.code) == (1, 1)
    (numbers,) = json.loads(as_json.out)
    assert (numbers["waiting"], numbers["records"], numbers["dead_letters"]) == (None, 0, 0)
    assert len(numbers["unread"]) == 1
    assert done.error.count("cannot connect to amqp://127.0.0.1:1/: 111") == 1
    assert "secret" not in done.out + done.err + as_json.out


def test_status_shows_the_numbers_of_the_queue_while_the_database_is_away(onceonly: Terminal) -> None:
    """The reason is printed once, although several parts are read there."""
    onceonly("topology", "create", "shop:shop")
    away = ("status", "shop:shop", "--store", "postgresql://me:secret@127.0.0.1:1/d")
    done, as_json = onceonly(*away), onceonly(*away, "--json")
    assert (done.code, as_json.code) == (1, 1)
    (numbers,) = json.loads(as_json.out)
    assert (numbers["waiting"], numbers["records"], numbers["dead_letters"]) == (0, None, None)
    assert "postgresql://127.0.0.1:1/d: " in done.error
    assert "not searched" not in done.out
    assert "secret" not in done.out + done.err + as_json.out


@pytest.mark.parametrize(("command", "option"), [("status", "--transport"), ("send", "--transport"), ("list", "--store")])
def test_a_command_gives_a_server_up_that_does_not_answer(
    onceonly: Terminal, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    """It took the connection, and that was all."""
    monkeypatch.setattr(targets, "ANSWER_SECONDS", 0.1)
    onceonly.write("orders.jsonl", [{"order_id": "A-1", "total": 1}])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scheme = "amqp" if option == "--transport" else "postgresql"
        done = onceonly(*COMMANDS[command], option, f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/d")
    assert (done.code, done.out) == (1, "")
    assert "no answer for 0.1 s" in done.error
