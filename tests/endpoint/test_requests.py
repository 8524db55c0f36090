"""Requests of handlers, from end to end: the page about them runs, what is lost is told, what can never be asked is refused."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from onceonly import Endpoint, Peer, Retry, SetupError
from onceonly.endpoint.host import host_of
from onceonly.endpoint.http_app import HttpApp
from onceonly.endpoint.requests import CallSender, RequestPlace, Requests, decided_requests
from onceonly.errors import InvalidEffect
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.remote import LARGEST, MOST_REQUESTS, Verb
from onceonly.ports.dead_letters import Filter
from tests import ROOT
from tests.endpoint.http_services import Order, payments, prepare, shop, until
from tests.servers.available import free_port

PAGE = (ROOT / "docs" / "explanation" / "http.md").read_text(encoding="utf-8")
CALLS = CallSender(str, 0, lambda *_: None)
URL = "http://127.0.0.1:1/x"


@asynccontextmanager
async def served(app: HttpApp | FastAPI, port: int) -> AsyncIterator[None]:
    """Serve an application, with its lifespan, on a real socket."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, lifespan="on", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        await serving


def module(name: str, folder: Path, port: int) -> Any:
    """Run one of the page's programs, in this folder and against this port."""
    block = next(b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if b.startswith(f"# {name}.py"))
    block = block.replace("https://payments.example", f"http://127.0.0.1:{port}").replace("sqlite:///", f"sqlite:///{folder}/")
    made = ModuleType(name)
    exec(compile(block, f"{name}.py", "exec"), vars(made))  # noqa: S102 - the page's own program
    return made


async def letters(endpoint: Endpoint) -> tuple[DeadLetter, ...]:
    """Read an endpoint's dead letters."""
    async with host_of(endpoint).opened() as ports:
        return await ports.dead_letters.page(Filter())


@pytest.mark.parametrize("program", ["payments", "mounted"])
async def test_the_programs_of_the_page_charge_an_order_once(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success and a rejection, each followed up with its response, by an application alone and by a mounted one."""
    port = free_port()
    asking, asked = module("shop", tmp_path, port), module("payments", tmp_path, port)
    monkeypatch.setitem(sys.modules, "payments", asked)
    app = asked.app if program == "payments" else module(program, tmp_path, port).app
    refused: list[str] = []
    receiver = Endpoint("complaints", store="memory://c", transport=f"sqlite:///{tmp_path}/queue.db")

    async def complain(order: Any) -> None:
        refused.append(order.order_id)

    complain.__annotations__["order"] = asking.NotCharged
    receiver.handler(complain)
    async with served(app, port), receiver.running(), asking.shop.running():
        async with asking.shop.transaction() as tx:
            tx.send(asking.Order("good", 5), to="shop")
            tx.send(asking.Order("bad", 0), to="shop")
        await until(lambda: refused == ["bad"])
    with closing(sqlite3.connect(tmp_path / "payments.db")) as connection:
        read = "SELECT count(*), count(request), count(answer) FROM onceonly_requests"
        await until(lambda: connection.execute(read).fetchone() == (2, 0, 0))
    assert await letters(asking.shop) == ()


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """As pytest runs them: the kit plays the other service."""
    for name in ("shop", "test_shop"):
        block = next(b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if b.startswith(f"# {name}.py"))
        (tmp_path / f"{name}.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert re.search(r"\d\d passed", done.stdout), done.stdout + done.stderr


async def test_a_lost_response_is_a_dead_letter_with_that_reason(tmp_path: Path) -> None:
    """Somebody emptied the other side's table after it had answered: nobody can tell what it did."""
    prepare(tmp_path)
    port = free_port()
    asking, asked = shop(tmp_path, port), payments(tmp_path)

    class Forgetful:
        """Serves all but GET; before the first of these it loses everything."""

        def __init__(self, app: HttpApp) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope.get("method") == "GET":
                with closing(sqlite3.connect(tmp_path / "payments.db", timeout=60)) as connection, connection:
                    connection.execute("DELETE FROM onceonly_requests")
            await self.app(scope, receive, send)

    def are_letters() -> bool:
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=60)) as connection:
            return bool(connection.execute("SELECT count(*) FROM onceonly_dead_letters").fetchone()[0])

    async with served(Forgetful(asked.http_app()), port), asking.running():  # type: ignore[arg-type]
        async with asking.transaction() as tx:
            tx.send(Order("a"), to="shop")
        await until(are_letters)
    (letter,) = await letters(asking)
    assert letter.message is not None
    assert (letter.message.type, letter.reason.startswith("response lost: ")) == ("Charged", True)


async def test_a_request_that_is_never_taken_is_a_dead_letter_with_its_words(tmp_path: Path) -> None:
    """No such operation there: the other side says so, and the message says it, too."""
    prepare(tmp_path)
    port = free_port()
    other = Endpoint("payments", store=f"sqlite:///{tmp_path}/payments.db", transport=f"sqlite:///{tmp_path}/pq.db")

    @other.responder(type="Refund")
    async def refund(asked: Order) -> None: ...

    asking = shop(tmp_path, port)
    asking.settings = replace(asking.settings, retry=Retry(immediate=0, delayed=0))

    def are_letters() -> bool:
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=60)) as connection:
            return bool(connection.execute("SELECT count(*) FROM onceonly_dead_letters").fetchone()[0])

    async with served(other.http_app(), port), asking.running():
        async with asking.transaction() as tx:
            tx.send(Order("a"), to="shop")
        await until(are_letters)
    (letter,) = await letters(asking)
    assert "no responder for operation 'Charge': use one of Refund" in letter.reason


@dataclass
class Follow:
    """What follows a request up."""

    name: str


def requests(place: RequestPlace | None = None, attempt: str = "attempt") -> Requests:
    """Make those of one run."""
    return Requests(
        place or RequestPlace((Peer(URL),), frozenset({"Follow"})), attempt, None, follow=lambda *_: None, calls=CALLS
    )


@pytest.mark.parametrize(
    ("url", "body", "then", "headers", "words"),
    [
        ("http://elsewhere/x/Charge", {}, Follow("a"), {}, "it is not one of the peers of this endpoint"),
        (f"{URL}/a/b", {}, Follow("a"), {}, "it is not one of the peers of this endpoint"),
        (f"{URL}/", {}, Follow("a"), {}, "it is not one of the peers of this endpoint"),
        (17, {}, Follow("a"), {}, "it is not one of the peers of this endpoint"),
        (f"{URL}/Charge", bytes(LARGEST + 1), Follow("a"), {}, "the limit is"),
        (f"{URL}/Charge", object(), Follow("a"), {}, "a body must be"),
        (f"{URL}/Charge", {}, Order("a"), {}, "no handler of this endpoint handles Order"),
        (f"{URL}/Charge", {}, Follow("a"), {"a": "b\r\nc: d"}, "must be text on one line"),
        (f"{URL}/Charge", {}, Follow("a"), {"onceonly-operation": "x"}, "cannot be set"),
    ],
)
async def test_what_can_never_be_asked_is_refused_at_once(  # noqa: PLR0917 - what pytest fills
    url: Any, body: object, then: object, headers: dict[str, str], words: str
) -> None:
    """And nothing is captured."""
    made = requests()
    with pytest.raises(InvalidEffect, match=re.escape(words)):
        await made.post(url, body, then=then, headers=headers)
    assert decided_requests(made) == ((), ())


async def test_a_handler_makes_a_few_requests_of_one_peer() -> None:
    """Each under a name of its own; what they come to is made after the commit."""
    made = requests()
    urls = [await made.post(f"{URL}/Charge", {}, then=Follow("a")) for _ in range(MOST_REQUESTS)]
    with pytest.raises(InvalidEffect, match="a handler can send at most"):
        await made.post(f"{URL}/Charge", {}, then=Follow("a"))
    artifacts, calls = decided_requests(made)
    assert urls == [f"{URL}/attempt.{index}" for index in range(MOST_REQUESTS)]
    assert [(call.verb, call.url) for call in calls] == [(Verb.POST, url) for url in urls]
    assert len({artifact.name for artifact in artifacts}) == MOST_REQUESTS
    with pytest.raises(InvalidEffect, match="after the handler ended"):
        await made.post(f"{URL}/Charge", {}, then=Follow("a"))


async def test_requests_need_an_attempt_a_peer_and_something_to_follow_up() -> None:
    """Each says what is missing."""
    with pytest.raises(InvalidEffect, match="has no peers"):
        await Requests(None, "attempt", None, follow=lambda *_: None, calls=CALLS).post(f"{URL}/Charge", {}, then=Follow("a"))
    with pytest.raises(InvalidEffect, match="this attempt has no reservation"):
        await requests(attempt="").post(f"{URL}/Charge", {}, then=Follow("a"))
    with pytest.raises(InvalidEffect, match="this message has no response"):
        _ = requests().response


@pytest.mark.parametrize("peers", ["http://a/x", [17], ["ftp://a"], ["http://a/x", "http://a/x/"]])
def test_impossible_peers_are_refused_where_the_endpoint_is_made(peers: Any) -> None:
    """With all else that is wrong."""
    with pytest.raises(SetupError, match="peers"):
        Endpoint("shop", store="memory://a", transport="memory://a", peers=peers)
