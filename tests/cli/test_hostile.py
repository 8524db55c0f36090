"""Servers whose connections are cut, garbled or never answered, as workers and commands meet them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from onceonly.assembly import temporary_transport
from onceonly.ports.transport import Topology
from tests.cli.terminal import Running, Terminal, running
from tests.servers.available import RABBITMQ, mariadb_database, need, postgresql_database, redis_place
from tests.servers.hostile import HOSTILE, Behaviour, Hostile
from tests.servers.swallowing import swallowing

WAITS, WORKS = "endpoint cannot start yet, retrying with backoff", "endpoint can start now"
STARTING = (Behaviour.CLOSES, Behaviour.RESETS, Behaviour.GARBAGE, Behaviour.REFUSES)
RUNNING = (Behaviour.CLOSES, Behaviour.RESETS, Behaviour.GARBAGE)
SYSTEMS = ("PostgreSQL", "psycopg", "PostgreSQL queue", "MariaDB", "MariaDB queue", "RabbitMQ", "Redis")
PATIENCE = 60.0
PROGRAM = """
from dataclasses import dataclass
from onceonly import DedupStore, Endpoint

@dataclass
class PlaceOrder:
    order_id: str

shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///queue.db")

@shop.handler
async def place_order(order: PlaceOrder) -> None:
    with open("handled", "a") as file:
        file.write(order.order_id + chr(10))
"""


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    """Return a port that nobody listens on yet."""
    with Hostile().listening() as port:
        yield port


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the option that names a system, and the URL of an empty place in it."""
    system = str(request.param)
    option = "--transport" if "queue" in system or system == "RabbitMQ" else "--store"
    if system in {"PostgreSQL", "PostgreSQL queue", "psycopg"}:
        with postgresql_database() as url:
            yield option, url.replace("postgresql:", "postgresql+psycopg:") if system == "psycopg" else url
    elif system.startswith("MariaDB"):
        with mariadb_database() as url:
            yield option, url
    elif system == "Redis":
        with redis_place() as url:
            yield option, url
    else:
        url = f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}."
        yield option, url
        asyncio.run(remove(url))


async def remove(url: str) -> None:
    """Delete what an endpoint left behind a prefix."""
    async with temporary_transport(url, [Topology(endpoint="shop")]):
        pass


def send(onceonly: Terminal, name: str, *options: str) -> None:
    """Send one message past the port."""
    onceonly.write("orders.jsonl", [{"order_id": name}])
    done = onceonly("send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "order_id", *options)
    assert done.code == 0, done.error


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait until something has happened elsewhere."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_order(onceonly: Terminal, run: Running, name: str) -> None:
    """Wait until a message was handled."""
    handled = onceonly.folder / "handled"
    wait_for(lambda: run.process.poll() is not None or (handled.exists() and name in handled.read_text().splitlines()))
    assert run.process.poll() is None, run.said


@pytest.mark.slow
@pytest.mark.parametrize("server", SYSTEMS, indirect=True)
def test_a_worker_outlives_whatever_happens_to_its_connections(
    onceonly: Terminal, hostile: Hostile, server: tuple[str, str]
) -> None:
    """At start and while it runs; afterwards it handles messages, and its log has no traceback."""
    option, url = server
    through = hostile.before(url)
    (onceonly.folder / "shop.py").write_text(PROGRAM)
    if not url.startswith(("redis", "amqp")):
        component = option.removeprefix("--")
        assert onceonly("schema", "create", url, "--component", component).code == 0
    past = (option, url) if option == "--transport" else ()
    hostile.behave(STARTING[0])
    with running(onceonly, "shop:shop", option, through) as run:
        run.until(WAITS)
        for behaviour in STARTING:
            hostile.behave(behaviour)
            came = hostile.connections
            wait_for(lambda came=came, behaviour=behaviour: hostile.connections > came or behaviour is Behaviour.REFUSES)
        hostile.behave(Behaviour.PASSES)
        run.until(WORKS)
        run.until("worker started")
        send(onceonly, "first", *past)
        wait_for_order(onceonly, run, "first")
        for number, behaviour in enumerate(RUNNING):
            came = hostile.connections
            hostile.behave(behaviour)
            send(onceonly, f"during-{number}", *past)
            wait_for(lambda came=came: hostile.connections > came)
            hostile.behave(Behaviour.PASSES)
            wait_for_order(onceonly, run, f"during-{number}")
        assert run.stop() == 0
    said = run.said
    assert "Traceback" not in said, said
    assert said.count(WAITS) == 1
    assert "process died" not in said, said


@pytest.mark.parametrize("behaviour", [each for each in HOSTILE if each is not Behaviour.SILENT])
@pytest.mark.parametrize(
    "url", ["mysql://root@127.0.0.1:1/test", "postgresql://root@127.0.0.1:1/postgres", "amqp://127.0.0.1:1/"]
)
def test_a_command_reports_it_in_one_line(onceonly: Terminal, hostile: Hostile, url: str, behaviour: Behaviour) -> None:
    """At once, with exit code 1 and the place; nobody waits here."""
    hostile.behave(behaviour)
    asked = ("status", "shop:shop", "--transport") if url.startswith("amqp") else ("dead", "list", "shop:shop", "--store")
    done = onceonly(*asked, hostile.before(url))
    assert (done.code, done.out) == (1, "")
    assert f"127.0.0.1:{hostile.port}" in done.error
    assert "Traceback" not in done.err
    assert done.err.count("\n") == 1, done.err


@pytest.mark.slow
@pytest.mark.parametrize("server", ["MariaDB", "MariaDB queue"], indirect=True)
@pytest.mark.parametrize("stops", ["later", "meanwhile"])
async def test_a_worker_outlives_bytes_that_are_swallowed(onceonly: Terminal, server: tuple[str, str], stops: str) -> None:
    """On open connections to MariaDB, for four seconds: it handles what comes, and a stop ends with exit code 0."""
    option, url = server
    (onceonly.folder / "shop.py").write_text(PROGRAM)
    past = (option, url) if option == "--transport" else ()
    async with swallowing(url) as (swallower, through):
        created = ("schema", "create", url, "--component", option.removeprefix("--"))
        assert (await asyncio.to_thread(onceonly, *created)).code == 0
        with running(onceonly, "shop:shop", option, through) as run:
            await asyncio.to_thread(run.until, "worker started")
            await asyncio.to_thread(send, onceonly, "first", *past)
            await asyncio.to_thread(wait_for_order, onceonly, run, "first")
            swallower.swallow(new=False)
            await asyncio.to_thread(send, onceonly, "second", *past)
            await swallower.swallowed.wait()
            if stops == "later":
                await asyncio.sleep(4)
                swallower.pass_on()
                await asyncio.to_thread(wait_for_order, onceonly, run, "second")
            assert await asyncio.to_thread(run.stop) == 0, run.said
    assert "Traceback" not in run.said, run.said
