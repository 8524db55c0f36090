"""Requests whose COMMIT is held up, cut or too late: nothing is promised to a client before the database has promised it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onceonly import Endpoint, Transaction
from onceonly.assembly import open_store
from onceonly.errors import CommitRefused
from onceonly.integrations.starlette import idempotent
from tests.integrations.harness import APPLICATIONS, FRAMEWORKS, Behaviour, Line, ServedApplication, serving, two_with_one_key
from tests.integrations.sync_harness import ThreadedWsgiTransport
from tests.log_events import event_in
from tests.servers.available import free_port
from tests.servers.cutting_commits import Cutter, cutting

pytestmark = pytest.mark.slow


@pytest.fixture(params=FRAMEWORKS, name="framework")
def each_framework(request: pytest.FixtureRequest) -> str:
    """Name a framework."""
    return str(request.param)


@asynccontextmanager
async def served_behind_a_cutter(url: str, framework: str, **terms: Any) -> AsyncIterator[tuple[ServedApplication, Cutter]]:
    """Serve on a server behind a cutter."""
    async with cutting(url) as (cutter, through):
        cutter.about = b"created"
        async with serving(url, through=through, make=APPLICATIONS[framework], **terms) as served:
            try:
                yield served, cutter
            finally:
                cutter.may_go.set()


def once_it_has_begun(served: ServedApplication, cutter: Cutter, moment: str) -> None:
    """Let the next request's COMMIT meet this; not before it runs, for drivers say COMMIT when they connect."""

    async def arm() -> None:
        cutter.cut, served.behaviour.before = moment, None

    served.behaviour.before = arm


async def first_of(asking: asyncio.Task[httpx.Response], cutter: Cutter) -> None:
    """Wait until the COMMIT is held up; fails if the request is answered without one."""
    holding = asyncio.create_task(cutter.holds.wait())
    await asyncio.wait({asking, holding}, return_when=asyncio.FIRST_COMPLETED)
    holding.cancel()
    assert not asking.done(), f"answered with {asking.result().status_code}: {asking.result().text}"


async def held_up(served: ServedApplication, cutter: Cutter, wire: httpx.AsyncBaseTransport, sent: list[str]) -> None:
    """Send a request whose COMMIT is held up, and see that nothing is sent before it is answered."""
    async with httpx.AsyncClient(transport=wire, base_url="http://shop") as client:
        asking = asyncio.create_task(client.post("/lines/created", headers={"Idempotency-Key": "k"}))
        await first_of(asking, cutter)
        cutter.cut = ""
        assert (await served.lines(), sent) == ([], [])  # a whole request of another connection: nothing comes meanwhile
        cutter.may_go.set()
        assert (await asking).status_code == 201


async def test_no_byte_is_sent_before_the_commit_is_answered(postgresql_url: str, framework: str) -> None:
    """Crash here: 1 the endpoint has returned, 2 COMMIT is under way, 3 the process dies, 4 the client was promised nothing."""
    async with served_behind_a_cutter(postgresql_url, framework) as (served, cutter):
        once_it_has_begun(served, cutter, "hold")
        sent: list[str] = []
        transport = served.client._transport
        if isinstance(transport, ThreadedWsgiTransport):
            transport.sent = sent
            await held_up(served, cutter, transport, sent)
            assert sent == ["start_response"]
            return
        app = transport.app  # type: ignore[attr-defined] # the client's own transport

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            async def note(message: Any) -> None:
                sent.append(message["type"])
                await send(message)

            await app(scope, receive, note)

        await held_up(served, cutter, httpx.ASGITransport(noting), sent)
        assert sent == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize(("moment", "was_done"), [("before", False), ("after", True)])
async def test_a_commit_that_is_not_answered_is_a_503_and_a_retry_finds_out(
    postgresql_url: str, framework: str, moment: str, *, was_done: bool
) -> None:
    """Whether it was done or not: one row, one message, one answer in the end."""
    async with served_behind_a_cutter(postgresql_url, framework) as (served, cutter):
        once_it_has_begun(served, cutter, moment)
        failed = await served.post("created")
        cutter.cut = ""
        assert (failed.status_code, failed.json()["code"], failed.headers["retry-after"]) == (503, "unknown", "1")
        assert len(await served.lines()) == was_done
        retry, again = [await served.post("created") for _ in range(2)]
        assert ("idempotent-replayed" in retry.headers) == was_done
        assert (retry.status_code, retry.content) == (again.status_code, again.content)
        assert retry.status_code == 201
        assert await served.lines() == ["created"]
        assert len(await served.announced(1)) == 1


async def test_a_request_without_a_key_is_told_that_nobody_can_find_out(postgresql_url: str, framework: str) -> None:
    """A 503 without a word about trying again."""
    async with served_behind_a_cutter(postgresql_url, framework, key_required=False) as (served, cutter):
        once_it_has_begun(served, cutter, "after")
        failed = await served.post("created", None)
        cutter.cut = ""
        assert (failed.status_code, failed.json()["code"]) == (503, "unknown")
        assert "retry-after" not in failed.headers


async def test_what_the_database_refuses_at_the_commit_is_a_500(postgresql_url: str, framework: str) -> None:
    """A constraint that is looked at only then: trying again cannot help, and what was written is told to nobody."""
    async with served_behind_a_cutter(postgresql_url, framework) as (served, _):
        await served.execute("ALTER TABLE request_lines ADD UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
        first, refused = [await served.post("created", key) for key in ("k-1", "k-2")]
        assert (first.status_code, refused.status_code) == (201, 500)
        assert refused.headers["content-type"] == "application/problem+json"
        assert "retry-after" not in refused.headers
        said = refused.json()
        assert (said["status"], said["code"], said["title"]) == (500, "commit-refused", "Commit Refused")
        assert "created" not in refused.text
        assert await served.lines() == ["created"]


async def test_what_the_database_refuses_is_logged_in_a_few_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the request, the error and its statement: the endpoint had returned, so a traceback shows nothing of it."""

    def make(shop: Endpoint, _behave: Behaviour, **terms: Any) -> Starlette:
        @idempotent(shop, **terms)
        async def twice(_request: Request, tx: Transaction) -> Response:
            tx.sql.add_all([Line(number=1, item="a"), Line(number=1, item="b")])
            return Response("done")

        return Starlette(routes=[Route("/lines/{what}", twice, methods=["POST"])])

    async with serving(f"sqlite:///{tmp_path}/shop.db", make=make) as served:
        assert (await served.post("twice")).json()["code"] == "commit-refused"
    (record,) = [each for each in caplog.records if event_in(each) == "request commit refused"]
    assert vars(record)["request"] == "POST /lines/twice"
    assert "UNIQUE constraint failed" in vars(record)["reason"]
    assert "INSERT INTO request_lines" in vars(record)["traceback"]
    assert len(logging.Formatter().format(record).splitlines()) < 10


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_an_application_may_say_itself_what_a_refused_commit_means(postgresql_url: str, framework: str) -> None:
    """By an exception handler, as for every other exception."""

    async def taken(_request: Request, _error: Exception) -> Response:
        return Response("taken", 409)

    def make(shop: Endpoint, behave: Behaviour, **terms: Any) -> Any:
        app = APPLICATIONS[framework](shop, behave, **terms)
        app.add_exception_handler(CommitRefused, taken)
        return app

    async with serving(postgresql_url, make=make) as served:
        await served.execute("ALTER TABLE request_lines ADD UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
        answers = [await served.post("created", key) for key in ("k-1", "k-2")]
        assert [(each.status_code, each.text) for each in answers] == [(201, answers[0].text), (409, "taken")]


async def waiting_for_the_same_key(url: str, framework: str) -> None:
    """Let a second request wait for a first one's key until it is told, then for as long as it takes."""
    async with serving(url, make=APPLICATIONS[framework], query="&timeout=100") as served:
        first, second, may_go = await two_with_one_key(served)
        assert (second.status_code, second.json()["code"]) == (409, "in-progress")
        served.behaviour.before = None
        third = asyncio.create_task(served.post("created"))
        other = asyncio.create_task(served.post("empty", "other"))
        may_go.set()
        assert (await other).status_code == 204
        assert {(it.status_code, it.content) for it in (await first, await third)} == {(201, (await first).content)}
        assert served.behaviour.runs == {"created": 1, "empty": 1}
        assert sorted(await served.lines()) == ["created", "empty"]


async def test_on_postgresql_a_second_request_waits_and_is_then_told(postgresql_url: str, framework: str) -> None:
    """By the key's row, whichever process has it."""
    await waiting_for_the_same_key(postgresql_url, framework)


async def test_on_mariadb_a_second_request_waits_and_is_then_told(mariadb_url: str, framework: str) -> None:
    """The same."""
    await waiting_for_the_same_key(mariadb_url, framework)


async def test_requests_are_served_while_the_broker_is_away_from_the_start(tmp_path: Path, framework: str) -> None:
    """Nobody waits for it: what they send waits in the store."""
    away = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    async with serving(f"sqlite:///{tmp_path}/shop.db", make=APPLICATIONS[framework], transport=away) as served:
        first, retry = [await served.post("created") for _ in range(2)]
        assert (first.status_code, retry.content) == (201, first.content)
        async with open_store(served.shop.settings) as opened:
            assert opened.pending is not None
            assert len(await opened.pending.undispatched(1 << 52, 10)) == 1
