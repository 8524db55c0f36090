"""What is FastAPI's own: the order of dependencies, response models, routes that take no part, what is refused at once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Form, Header, HTTPException, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.requests import Request

from onceonly import Endpoint, SetupError, Transaction
from onceonly.errors import TransactionMisused
from onceonly.integrations.fastapi import IdempotentRoute, Tx, transaction
from tests.integrations.harness import Behaviour, ServedApplication, serving, write


class New(BaseModel):
    """A request's body."""

    item: str
    amount: int = 1


class Made(BaseModel):
    """A response's body."""

    number: int


class Notes:
    """What dependencies and endpoints do, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def who(self, x_user: Annotated[str, Header()] = "") -> str:
        """Tell who asks; refuse nobody's request."""
        self.said.append("who")
        if not x_user:
            raise HTTPException(401)
        return x_user

    async def session(self) -> AsyncIterator[str]:
        """Be there until the response is sent."""
        self.said.append("enter")
        try:
            yield "session"
        finally:
            self.said.append("leave")

    async def number(self, tx: Tx, new: New) -> int:
        """Work in the transaction, as a repository would."""
        self.said.append("number")
        return await write(tx, new.item)


def application(shop: Endpoint, notes: Notes) -> FastAPI:
    """Make an application with a route of each kind."""
    app = FastAPI()
    router = APIRouter(route_class=IdempotentRoute.of(shop))
    made: dict[str, Any] = {"status_code": 201, "response_model": Made}

    @router.post("/ordered", **made)
    async def ordered(
        tx: Tx,
        *,
        number: Annotated[int, Depends(notes.number)],
        user: Annotated[str, Depends(notes.who)],
        session: Annotated[str, Depends(notes.session)],
        again: Annotated[Transaction, Depends(transaction, use_cache=False)],
    ) -> dict[str, Any]:
        assert tx is again
        notes.said.append(f"{user} in {session}")
        return {"number": number, "secret": "not of the model"}

    @router.post("/without")
    async def without(response: Response, tasks: BackgroundTasks) -> dict[str, str]:
        notes.said.append("without")
        response.headers["x-own"] = "kept"
        response.status_code = 202
        tasks.add_task(notes.said.append, "afterwards")
        return {"a": "b"}

    @router.post("/wrong", **made)
    async def wrong(new: New, tx: Tx) -> dict[str, Any]:
        return {"nothing": await write(tx, new.item)}

    @router.post("/form")
    async def form(item: Annotated[str, Form()], tx: Tx) -> PlainTextResponse:
        return PlainTextResponse(f"{item} {await write(tx, item)}")

    @router.get("/look")
    def look() -> str:
        return "seen"

    @router.get("/asks")
    async def asks(tx: Tx) -> str:
        return repr(tx)

    app.include_router(router, prefix="/api")
    return app


@pytest.fixture
def notes() -> Notes:
    """Begin with nothing noted."""
    return Notes()


@pytest.fixture
async def served(tmp_path: Path, notes: Notes) -> AsyncIterator[ServedApplication]:
    """Serve on a file."""

    def make(shop: Endpoint, _behaviour: Behaviour, **_terms: object) -> FastAPI:
        return application(shop, notes)

    async with serving(f"sqlite:///{tmp_path}/shop.db", make=make) as served:
        yield served


async def ask(served: ServedApplication, path: str, key: str = "k", **options: Any) -> Any:
    """Send a request with a key, by a user."""
    headers = {"Idempotency-Key": f'"{key}"', "X-User": "ann", **options.pop("headers", {})}
    return await served.client.post(f"/api/{path}", headers=headers, **options)


async def test_dependencies_that_need_no_transaction_come_first(served: ServedApplication, notes: Notes) -> None:
    """Whatever order the endpoint names them in; the response is the model's, and those with `yield` end after it."""
    first = await ask(served, "ordered", json={"item": "tea"})
    assert (first.status_code, first.json()) == (201, {"number": 1})
    assert notes.said == ["who", "enter", "number", "ann in session", "leave"]
    notes.said.clear()
    retry = await ask(served, "ordered", json={"item": "tea"})
    assert (retry.content, retry.headers["idempotent-replayed"]) == (first.content, "true")
    assert notes.said == ["who", "enter", "leave"]
    assert await served.lines() == ["tea"]


async def test_who_may_not_ask_is_not_given_what_is_kept(served: ServedApplication) -> None:
    """Not even with the right key."""
    await ask(served, "ordered", json={"item": "tea"})
    refused = await ask(served, "ordered", json={"item": "tea"}, headers={"X-User": ""})
    assert refused.status_code == 401
    assert "idempotent-replayed" not in refused.headers


async def test_an_endpoint_that_does_not_ask_for_the_transaction_takes_part(served: ServedApplication, notes: Notes) -> None:
    """With headers, status and background tasks that FastAPI adds to the response."""
    first, retry = [await ask(served, "without") for _ in range(2)]
    assert (first.status_code, first.headers["x-own"], first.content) == (
        retry.status_code,
        retry.headers["x-own"],
        retry.content,
    )
    assert first.status_code == 202
    assert notes.said == ["without", "afterwards"]


async def test_a_request_that_does_not_fit_is_served_anew(served: ServedApplication) -> None:
    """FastAPI refuses it, and the key is free for the mended one."""
    statuses = [(await ask(served, "ordered", json=body)).status_code for body in ({"item": 3}, {}, {"item": "tea"})]
    assert statuses == [422, 422, 201]
    assert (await ask(served, "ordered", "other", content=b"{")).status_code == 422
    assert await served.lines() == ["tea"]


async def test_a_response_that_does_not_fit_its_model_is_rolled_back(served: ServedApplication) -> None:
    """It is written before the commit, not after."""
    assert (await ask(served, "wrong", json={"item": "tea"})).status_code == 500
    assert await served.lines() == []


async def test_forms_can_be_read_after_their_bytes_were(served: ServedApplication) -> None:
    """The body is hashed, and parsed."""
    asked: dict[str, Any] = {"content": b"item=tea", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}
    assert [(await ask(served, "form", **asked)).text for _ in range(2)] == ["tea 1"] * 2


async def test_get_passes_through_without_a_transaction(served: ServedApplication) -> None:
    """Also without a key, and by a `def`."""
    assert (await served.client.get("/api/look")).json() == "seen"
    assert (await served.client.get("/api/asks")).status_code == 500


async def test_the_header_is_in_the_description_of_the_api(served: ServedApplication) -> None:
    """So that a generated client has a place for it."""
    described = (await served.client.get("/openapi.json")).json()["paths"]["/api/without"]["post"]["parameters"]
    assert [(each["name"], each["in"]) for each in described] == [("Idempotency-Key", "header")]


def test_a_route_that_does_not_say_whose_transactions_is_refused() -> None:
    """When the module is imported, not at the first request."""
    router = APIRouter(route_class=IdempotentRoute)

    async def place() -> None:
        """Do nothing."""

    with pytest.raises(SetupError, match=r"IdempotentRoute\.of\(shop\)"):
        router.post("/orders")(place)


async def _yielding() -> AsyncIterator[str]:
    yield "a line"


def _in_a_thread() -> None:
    """Do nothing."""


@pytest.mark.parametrize("function", [_yielding, _in_a_thread])
def test_an_endpoint_that_cannot_take_part_is_refused(tmp_path: Path, function: Any) -> None:
    """A `def` runs in a thread, a generator while its response is sent."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport="memory://x")
    with pytest.raises(SetupError, match="must be an `async def` that returns"):
        APIRouter(route_class=IdempotentRoute.of(shop)).post("/orders")(function)


async def test_the_dependency_on_another_kind_of_route_says_what_is_wrong() -> None:
    """There is nothing it could give."""
    with pytest.raises(TransactionMisused, match="POST /orders has no transaction"):
        await transaction(Request({"type": "http", "method": "POST", "path": "/orders", "headers": [], "query_string": b""}))
