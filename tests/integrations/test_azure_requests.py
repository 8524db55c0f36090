"""HTTP functions of Azure with an `Idempotency-Key`: a repeated request gets the stored response, and changes nothing."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import azure.functions as func
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from examples.hosts.harness import ROOT
from onceonly import Endpoint, SetupError, Transaction
from onceonly.integrations.azure_functions import RequestTransaction, close, idempotent
from tests.endpoint.hosted_harness import Base, Line, declare_listener, pending, received, rows, sql_shop

Function = Callable[..., Any]


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    """Name a store and a queue on SQLite."""
    return f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
async def shop(urls: tuple[str, str]) -> AsyncIterator[Endpoint]:
    """Make an endpoint, and its tables."""
    await declare_listener(urls[1])
    shop = sql_shop(*urls)
    async with shop.opened():
        pass
    yield shop
    await close(shop)


@pytest.fixture(params=["async", "def"])
def place(request: pytest.FixtureRequest, shop: Endpoint, urls: tuple[str, str]) -> Any:
    """Make a function of both kinds, which writes a row and publishes. It fails or answers as the body says."""

    def write(body: dict[str, Any], tx: Any) -> func.HttpResponse:
        tx.sql.add(Line(what=body["id"]))
        tx.publish({"id": body["id"]}, type="Placed")
        if body.get("fails"):
            raise ValueError("not now")
        answer = json.dumps({"placed": body["id"]})
        headers = {"Location": f"/orders/{body['id']}"}
        return func.HttpResponse(answer, status_code=body.get("status", 201), headers=headers, mimetype="application/json")

    if request.param == "async":

        @idempotent(shop)
        async def place_async(req: func.HttpRequest, tx: Transaction) -> func.HttpResponse:
            return write(req.get_json(), tx)

        yield place_async
        return
    engine = create_engine(urls[0])
    Base.metadata.create_all(engine)

    @idempotent(shop, sessionmaker(engine))
    def place_def(req: func.HttpRequest, tx: RequestTransaction) -> func.HttpResponse:
        return write(req.get_json(), tx)

    yield place_def
    engine.dispose()


def post(key: str | None = "k1", *, by: str = "me", **body: Any) -> func.HttpRequest:
    """Make a request as the worker does."""
    headers = {"Content-Type": "application/json", "Authorization": by} | ({"Idempotency-Key": key} if key else {})
    return func.HttpRequest(
        "POST", "https://shop/api/orders?a=1", headers=headers, body=json.dumps(body or {"id": "a"}).encode()
    )


def seen(response: func.HttpResponse) -> tuple[int, bytes, str | None, str | None]:
    """Return what a client sees, without what marks a repetition."""
    headers = response.headers
    return response.status_code, response.get_body(), headers.get("location"), headers.get("content-type")


async def test_a_repeated_request_gets_the_same_response(place: Function, shop: Endpoint, urls: tuple[str, str]) -> None:
    """Also from the next process. The rows and the message are there once."""
    first, second = await asyncio.gather(place(req=post()), place(req=post()))
    await close(shop)
    third = await place(req=post())
    assert seen(first) == seen(second) == seen(third) == (201, b'{"placed": "a"}', "/orders/a", "application/json")
    assert [each.headers.get("idempotent-replayed") for each in (first, second, third)].count("true") == 2
    assert await rows(urls[0]) == ["a"]
    assert await pending(shop) == 0
    assert len(set(await received(urls[1]))) == 1


async def test_what_fails_leaves_nothing_and_may_be_repeated(place: Function, urls: tuple[str, str]) -> None:
    """An exception goes to the host, which answers 500. A response that is not stored is sent."""
    with pytest.raises(ValueError, match="not now"):
        await place(req=post(id="a", fails=True))
    assert (await place(req=post("k2", id="b", status=503))).status_code == 503
    assert await rows(urls[0]) == []
    assert (await place(req=post())).status_code == 201
    assert (await place(req=post("k2", id="b"))).status_code == 201
    assert await rows(urls[0]) == ["a", "b"]


async def test_other_requests_under_a_key_are_refused(place: Function, urls: tuple[str, str]) -> None:
    """With the problems of all integrations."""
    assert (await place(req=post())).status_code == 201
    for refused, status, code in (
        (post(id="b"), 422, "key-reused"),
        (post(by="somebody else"), 422, "key-reused"),
        (post(None), 400, "key-missing"),
        (post("a key, with spaces"), 400, "malformed-key"),
        (post("k3", id="x" * (1 << 20)), 413, "too-large"),
    ):
        response = await place(req=refused)
        assert (response.status_code, json.loads(response.get_body())["code"]) == (status, code)
        assert response.headers["content-type"] == "application/problem+json"
    assert await rows(urls[0]) == ["a"]


async def test_what_is_not_a_response_is_refused(shop: Endpoint, urls: tuple[str, str]) -> None:
    """Nothing is committed. A text is a response."""

    @idempotent(shop)
    async def place(req: func.HttpRequest, tx: Transaction) -> Any:
        tx.sql.add(Line(what="a"))
        return "placed" if req.headers["idempotency-key"] == "text" else {"placed": "a"}

    with pytest.raises(TypeError, match="not dict"):
        await place(req=post())
    assert await rows(urls[0]) == []
    assert seen(await place(req=post("text"))) == (200, b"placed", None, "text/plain; charset=utf-8")
    with pytest.raises(TypeError, match="HTTP triggers"):
        await place(req="request")


def test_the_host_sees_no_transaction() -> None:
    """It would refuse the parameter."""
    shop, app = Endpoint("shop", store="sqlite:///never.db"), func.FunctionApp()

    @app.route(route="orders", methods=["POST"])
    @idempotent(shop)
    async def place(req: func.HttpRequest, tx: Transaction) -> func.HttpResponse:  # noqa: ARG001 - the names are compared
        return func.HttpResponse()

    (function,) = app.get_functions()
    assert set(function.get_user_function().__annotations__) == {"req", "return"}
    with pytest.raises(SetupError, match="no parameter tx"):
        idempotent(shop)(lambda req: req)


TIME_SPAN = re.compile(r"\d\d:\d\d:\d\d")
HOST_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "version": "2.0".__eq__,
    "functionTimeout": lambda value: bool(TIME_SPAN.fullmatch(value)),
    "extensionBundle.id": "Microsoft.Azure.Functions.ExtensionBundle".__eq__,
    "extensionBundle.version": lambda value: bool(re.fullmatch(r"\[\d+\.\*, \d+\.0\.0\)", value)),
    "extensions.serviceBus.maxConcurrentCalls": lambda value: isinstance(value, int) and value > 0,
    "extensions.serviceBus.maxAutoLockRenewalDuration": lambda value: bool(TIME_SPAN.fullmatch(value)),
    "extensions.queues.messageEncoding": lambda value: value in {"base64", "none"},
    "extensions.queues.maxDequeueCount": lambda value: isinstance(value, int) and value > 0,
}
"""Settings of host.json and their values, as in the documentation: host.json reference for Azure Functions 2.x and later, and
the pages of the bindings for Service Bus (extension 5.x and later) and Queue storage. No package has a schema of it."""


def wrong_settings(settings: Any, place: str = "") -> Iterator[str]:
    """Name what the host does not know, or would not accept."""
    for name, value in settings.items():
        path = f"{place}{name}"
        if isinstance(value, dict):
            yield from wrong_settings(value, f"{path}.")
        elif path not in HOST_SETTINGS or not HOST_SETTINGS[path](value):
            yield path


def test_settings_that_the_host_does_not_know_are_found() -> None:
    """The names of extension 4.x are such: it had `messageHandlerOptions`."""
    old = {"version": "2.0", "extensions": {"serviceBus": {"messageHandlerOptions": {"maxConcurrentCalls": 16}}}}
    assert list(wrong_settings(old)) == ["extensions.serviceBus.messageHandlerOptions.maxConcurrentCalls"]
    assert list(wrong_settings({"functionTimeout": "5 minutes"})) == ["functionTimeout"]


def test_the_app_to_deploy_lists_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import opens nothing, and its host.json has the time that its function relies on."""
    folder = ROOT / "examples" / "hosts" / "azure_functions" / "deploy"
    monkeypatch.setenv("SHOP_STORE", "postgresql://nowhere.invalid/shop")
    monkeypatch.setenv("SHOP_TRANSPORT", "amqp://nowhere.invalid/")
    app = run_path(str(folder / "function_app.py"))["app"]
    names = {each.get_function_name() for each in app.get_functions()}
    assert names == {"place_order", "accept_order", "open_the_day", "onceonly_shop"}
    settings = json.loads((folder / "host.json").read_text())
    assert settings["functionTimeout"] == "00:05:00"
    assert list(wrong_settings(settings)) == []
    assert "azure-functions" in (folder / "requirements.txt").read_text()
