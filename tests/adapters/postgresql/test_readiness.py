"""`/ready` while a server's settings become unsafe: the check that finds this is due at once here, not after 30 s."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from onceonly import Endpoint
from onceonly.cli.health import HealthSource
from onceonly.endpoint.host import host_of
from onceonly.model.health import HealthAssessment, Pulse
from onceonly.model.message import Message, Send
from onceonly.runtime.observe.health_state import HealthObserver
from onceonly.runtime.observe.observer import PortCall
from onceonly.sql import database as sql
from onceonly.sql.database import Database
from tests.servers.available import on_postgresql

HERE = Pulse(process=0, pid=1, runs=True)


@dataclass
class Order:
    """A message."""

    id: str


class ObservedVitals(HealthObserver):
    """Vitals that wake up who waits, after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def ended(self, call: PortCall, error: BaseException | None) -> None:
        """Take it in, and wake up."""
        super().ended(call, error)
        self.changed.set()


async def until(health_observer: ObservedVitals, holds: Callable[[], bool]) -> None:
    """Return once it holds: looked at after each call of the endpoint."""
    async with asyncio.timeout(60):
        while not holds():
            health_observer.changed.clear()
            await health_observer.changed.wait()


@asynccontextmanager
async def role(url: str) -> AsyncIterator[str]:
    """Make a role of one test's own."""
    name = f"ready_{uuid4().hex[:8]}"
    await on_postgresql(f"CREATE ROLE {name} LOGIN SUPERUSER", url=url)
    try:
        yield name
    finally:
        await on_postgresql(f"DROP ROLE {name}", url=url)


async def test_an_endpoint_whose_server_begins_to_lose_commits_is_not_ready(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which setting, handles nothing meanwhile, and goes on by itself once that is put right."""
    handled: list[str] = []
    monkeypatch.setattr(sql, "CHECK_INTERVAL_SECONDS", 0.0)
    async with role(url) as mine:
        through = make_url(url).set(username=mine, query={"prefix": database.prefix}).render_as_string(hide_password=False)
        shop = Endpoint("shop", store=through, transport=f"memory://{mine}", janitor_interval=timedelta(hours=1))

        @shop.handler
        async def note(order: Order) -> None:
            handled.append(order.id)

        health_observer = ObservedVitals()
        desk = HealthSource(["shop"], lambda: (HERE,), lambda _process: health_observer.endpoints())

        def is_ready() -> bool:
            return desk.ready().status is HTTPStatus.OK

        async def send(id_: str) -> None:
            message = Message(id=id_, source="test", type="Order", body=f'{{"id": "{id_}"}}'.encode())
            ports = host_of(shop).bound_ports()
            assert ports is not None
            await ports.transport.send([Send(message=message, to="shop")])

        async with host_of(shop).running(observer=health_observer):
            await send("before")
            await until(health_observer, lambda: is_ready() and handled == ["before"])
            await on_postgresql(f"ALTER ROLE {mine} SET synchronous_commit = off", url=url)
            await send("meanwhile")
            await until(health_observer, lambda: not is_ready())
            status, assessment = desk.ready()
            assert status is HTTPStatus.SERVICE_UNAVAILABLE
            assert isinstance(assessment, HealthAssessment)
            assert any(
                "endpoint shop, process 0: store" in each and "synchronous_commit=off" in each for each in assessment.reasons
            )
            assert handled == ["before"]
            await on_postgresql(f"ALTER ROLE {mine} RESET synchronous_commit", url=url)
            await until(health_observer, lambda: is_ready() and handled == ["before", "meanwhile"])
