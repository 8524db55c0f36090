"""An endpoint behind two frameworks that behave alike, and a client of theirs; what is committed is looked at past them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
from fastapi import APIRouter, FastAPI
from sqlalchemy import MetaData, String, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onceonly import Endpoint, Transaction
from onceonly.assembly import open_database, open_transport, schemas
from onceonly.integrations.fastapi import IdempotentRoute, Tx
from onceonly.integrations.starlette import idempotent, lifespan
from onceonly.ports.transport import Topology, Transport
from onceonly.sql.schema import create, create_user_tables, drop
from tests.integrations.django_harness import close_aliases, django_application
from tests.integrations.sync_harness import ThreadedWsgiTransport, close_engines, flask_application, wsgi_application

FRAMEWORKS = ("fastapi", "starlette", "flask", "wsgi", "django")


class Base(DeclarativeBase):
    """The user's tables."""

    metadata = MetaData()


class Line(Base):
    """One row for each time a request was committed: nothing else keeps it from being there twice."""

    __tablename__ = "request_lines"
    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(80))


@dataclass
class Written:
    """What is announced."""

    item: str
    number: int


async def write(tx: Transaction, item: str) -> int:
    """Add a row and announce it; gives its number."""
    line = Line(item=item)
    tx.sql.add(line)
    await tx.sql.flush()
    tx.publish(Written(item, line.number))
    return line.number


class Template(HTMLResponse):
    """Has its own `__call__`, as responses made of templates have."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what test clients look at, and the response."""
        if "http.response.debug" in scope.get("extensions", {}):
            await send({"type": "http.response.debug", "info": {}})
        await super().__call__(scope, receive, send)


class Behaviour:
    """What the endpoints of both frameworks do: write a row, then end as their path says."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.afterwards: list[str] = []
        self.before: Callable[[], Any] | None = None

    async def __call__(self, what: str, tx: Transaction) -> Response:
        """Write, and end in this way."""
        self.runs[what] += 1
        if self.before is not None:
            await self.before()
        number = await write(tx, what)
        if what == "raises":
            raise ZeroDivisionError
        if what == "raises-4xx":
            raise HTTPException(404, "no such thing")
        return self._responses(number)[what]()

    def _responses(self, number: int) -> dict[str, Callable[[], Response]]:
        made = {"location": f"/lines/{number}", "x-number": str(number), "set-cookie": "session=secret"}
        return {
            "created": lambda: JSONResponse({"number": number}, 201, made),
            "empty": lambda: Response(status_code=204),
            "moved": lambda: RedirectResponse(f"/lines/{number}", 303),
            "refused": lambda: JSONResponse({"refused": number}, 409),
            "broken": lambda: JSONResponse({"broken": number}, 502),
            "streams": lambda: StreamingResponse(iter(["a", "b"])),
            "template": lambda: Template(f"line {number}"),
            "too-many": lambda: JSONResponse({"wait": True}, 429),
            "injected": lambda: Response("x", headers={"x-a": "b\r\nset-cookie: c=d"}),
            "large": lambda: Response(bytes((1 << 20) + 1)),
            "background": lambda: Response("done", background=BackgroundTask(self.afterwards.append, "background")),
            "bytes": lambda: Response(b"\x00\xffbytes", media_type="application/octet-stream"),
        }


def fastapi_application(shop: Endpoint, behave: Behaviour, **terms: Any) -> FastAPI:
    """Make a FastAPI application whose route is done once."""
    app = FastAPI()
    router = APIRouter(route_class=IdempotentRoute.of(shop, **terms))

    @router.api_route("/lines/{what}", methods=["POST", "PUT"], response_model=None)
    async def serve(what: str, tx: Tx) -> Response:
        return await behave(what, tx)

    app.include_router(router)
    return app


def starlette_application(shop: Endpoint, behave: Behaviour, **terms: Any) -> Starlette:
    """Make a Starlette application that behaves alike."""

    @idempotent(shop, **terms)
    async def serve(request: Request, tx: Transaction) -> Response:
        return await behave(request.path_params["what"], tx)

    return Starlette(routes=[Route("/lines/{what}", serve, methods=["POST", "PUT"])])


APPLICATIONS: Mapping[str, Callable[..., Any]] = {
    "fastapi": fastapi_application,
    "starlette": starlette_application,
    "flask": flask_application,
    "wsgi": wsgi_application,
    "django": django_application,
}


class ServedApplication:
    """An application that is being served, a client of it, and what is seen past both."""

    def __init__(self, shop: Endpoint, behaviour: Behaviour, client: httpx.AsyncClient, url: str) -> None:
        self.shop, self.behaviour, self.client = shop, behaviour, client
        self.url = url
        self.sink: Transport

    async def post(self, what: str, key: str | None = "k", **options: Any) -> httpx.Response:
        """Send a request, with a key in quotes."""
        headers = {**({} if key is None else {"Idempotency-Key": f'"{key}"'}), **options.pop("headers", {})}
        return await self.client.post(f"/lines/{what}", headers=headers, **options)

    async def lines(self) -> list[str]:
        """Read what is committed."""
        async with open_database(self.url) as database, database.reading() as connection:
            return list(await connection.scalars(select(Line.item).order_by(Line.number)))

    async def execute(self, statement: str) -> None:
        """Run a statement past the application."""
        async with open_database(self.url) as database, database.writing() as connection:
            await connection.execute(text(statement))

    async def announced(self, count: int) -> list[str]:
        """Wait for so many messages."""
        found: list[str] = []
        while len(found) < count:
            taken = await self.sink.receive(100, 0.1)
            found += [dict(delivery.headers)["ce-id"] for delivery in taken]
            await self.sink.ack(taken)
        return found


async def two_with_one_key(served: ServedApplication) -> tuple[asyncio.Task[httpx.Response], httpx.Response, asyncio.Event]:
    """Send a second request while the first is at work; gives the first, the second's answer, and what lets the first go on."""
    at_work, may_go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        at_work.set()
        await may_go.wait()

    served.behaviour.before = hold
    first = asyncio.create_task(served.post("created"))
    async with asyncio.timeout(50):
        await at_work.wait()
        return first, await served.post("created"), may_go


@asynccontextmanager
async def serving(
    place: str,
    *,
    through: str = "",
    query: str = "",
    transport: str = "",
    make: Callable[..., Any] = fastapi_application,
    **terms: Any,
) -> AsyncIterator[ServedApplication]:
    """Make tables in a database, and serve an application whose endpoint reaches it by `through`."""
    name = uuid4().hex[:8]
    url = f"{place}?prefix=web_{name}_"
    events = f"memory://{name}"
    async with open_database(url) as database:
        await create(database, *schemas("store"))
        await create_user_tables(database, Base.metadata)
        try:
            async with open_transport(events, "sink") as sink:
                await sink.declare([Topology(endpoint="sink", events=("Written",))])
                shop = Endpoint(
                    "shop", store=url.replace(place, through or place) + query, transport=transport or events, relay_after=0.2
                )

                @shop.handler(type="ignored")
                async def ignore(_body: dict[str, str]) -> None:
                    """Do nothing."""

                behaviour = Behaviour()
                app = make(shop, behaviour, **terms)
                wire: httpx.AsyncBaseTransport = httpx.ASGITransport(app, raise_app_exceptions=False)
                if not isinstance(app, Starlette):
                    wire = ThreadedWsgiTransport(app)
                async with lifespan(shop)(app), httpx.AsyncClient(transport=wire, base_url="http://shop") as client:
                    served = ServedApplication(shop, behaviour, client, url)
                    served.sink = sink
                    yield served
        finally:
            close_engines()
            close_aliases()
            async with database.writing() as connection:
                await connection.run_sync(Base.metadata.drop_all)
            await drop(database, *schemas("store"))
