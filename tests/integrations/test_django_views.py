"""`idempotent` on the kinds of views that Django, Django REST framework and Django Ninja have, sync and async."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Endpoint as CoreEndpoint
from onceonly.errors import SetupError, TransactionMisused
from tests.django_project import alias_of, set_up

set_up()

from asgiref.sync import sync_to_async  # noqa: E402 - Django is set up before
from django.core.files.uploadedfile import SimpleUploadedFile  # noqa: E402 - the same
from django.core.management import call_command  # noqa: E402 - the same
from django.db import OperationalError, connections, transaction  # noqa: E402 - the same
from django.http import FileResponse, Http404, HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402 - the same
from django.test import AsyncClient, Client  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same
from django.urls import path  # noqa: E402 - the same
from django.utils.decorators import method_decorator  # noqa: E402 - the same
from django.views import View  # noqa: E402 - the same
from ninja import NinjaAPI, Schema  # noqa: E402 - the same
from ninja.errors import HttpError  # noqa: E402 - the same
from ninja.responses import Status  # noqa: E402 - the same
from ninja.security import APIKeyHeader  # noqa: E402 - the same
from rest_framework.exceptions import ValidationError  # noqa: E402 - the same
from rest_framework.response import Response  # noqa: E402 - the same
from rest_framework.views import APIView  # noqa: E402 - the same
from rest_framework.viewsets import ViewSet  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, idempotent  # noqa: E402 - the same
from tests.django_project.models import Order  # noqa: E402 - the same

ALIAS = "views"
KINDS = ("function", "async function", "class", "async class", "dispatch", "as_view", "drf", "drf as_view", "viewset", "ninja")
KINDS += ("async ninja",)


class Placing:
    """What all views do: store an order and announce it, then end as they are asked to."""

    def __init__(self, shop: Endpoint) -> None:
        self.shop = shop
        self.runs = 0

    def place(self, how: str) -> dict[str, int]:
        """Do it."""
        self.runs += 1
        order = Order.objects.using(ALIAS).create(name=how)
        self.shop.publish({"order": order.pk}, type="Placed")
        if how == "raises":
            raise Http404
        if how == "locked":
            raise OperationalError("no cause")
        return {"placed": order.pk}

    async def aplace(self, how: str) -> dict[str, int]:
        """Do it in an event loop."""
        self.runs += 1
        order = await Order.objects.using(ALIAS).acreate(name=how)
        await asyncio.sleep(0)
        await self.shop.apublish({"order": order.pk}, type="Placed")
        if how == "raises":
            raise Http404
        return {"placed": order.pk}

    def kept(self) -> tuple[int, int, int]:
        """Count orders, records and keys."""
        with connections[ALIAS].cursor() as cursor:
            return tuple(  # type: ignore[return-value]
                cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - of this test
                for table in ("django_project_order", "onceonly_records", "onceonly_keys")
            )


@pytest.fixture(scope="module", autouse=True)
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file = tmp_path_factory.mktemp("django") / "views.db"
    with alias_of(ALIAS, f"sqlite:///{file}", OPTIONS={"timeout": 30}):
        call_command("migrate", database=ALIAS, run_syncdb=True, verbosity=0)
        yield


@pytest.fixture
def placing() -> Iterator[Placing]:
    """Make an endpoint, and leave no rows."""
    yield Placing(Endpoint("shop", database=ALIAS, transport=f"memory://{uuid4().hex}"))
    call_command("flush", database=ALIAS, interactive=False, verbosity=0)


def urls_of(kind: str, placing: Placing, **terms: Any) -> tuple[Any, ...]:
    """Return the URL of a kind of view."""
    once = idempotent(placing.shop, **terms)
    makers: dict[str, Callable[[], Any]] = {
        "function": lambda: once(lambda _request, how: JsonResponse(placing.place(how), status=201)),
        "async function": lambda: once(_async_function(placing)),
        "class": lambda: _class(placing, once).as_view(),
        "async class": lambda: _async_class(placing, once).as_view(),
        "dispatch": lambda: method_decorator(once, name="dispatch")(_class(placing, _nothing)).as_view(),
        "as_view": lambda: once(_class(placing, _nothing).as_view()),
        "drf": lambda: _api_view(placing, once).as_view(),
        "drf as_view": lambda: once(_api_view(placing, _nothing).as_view()),
        "viewset": lambda: _view_set(placing, once).as_view({"post": "create", "get": "list"}),
    }
    if "ninja" in kind:
        return (path("", _ninja(placing, once, is_async=kind.startswith("async")).urls),)
    return (path("orders/<how>", makers[kind]()),)


def _nothing(view: Any) -> Any:
    return view


def _async_function(placing: Placing) -> Any:
    async def view(_request: Any, how: str) -> HttpResponse:
        return JsonResponse(await placing.aplace(how), status=201)

    return view


def _class(placing: Placing, once: Any) -> Any:
    class PlaceOrder(View):
        @once
        def post(self, request: Any, how: str) -> HttpResponse:
            return JsonResponse(placing.place(how), status=201)

        def get(self, request: Any, how: str) -> HttpResponse:
            return HttpResponse("got")

    return PlaceOrder


def _async_class(placing: Placing, once: Any) -> Any:
    class PlaceOrder(View):
        @once
        async def post(self, request: Any, how: str) -> HttpResponse:
            return JsonResponse(await placing.aplace(how), status=201)

        async def get(self, request: Any, how: str) -> HttpResponse:
            return HttpResponse("got")

    return PlaceOrder


def _api_view(placing: Placing, once: Any) -> Any:
    class PlaceOrder(APIView):
        @once
        def post(self, request: Any, how: str) -> Response:
            if how == "invalid":
                placing.place(how)
                raise ValidationError({"total": ["must be positive"]})
            assert isinstance(request.data, dict)
            return Response(placing.place(how), 201)

        def get(self, request: Any, how: str) -> Response:
            return Response("got")

    return PlaceOrder


def _view_set(placing: Placing, once: Any) -> Any:
    class Orders(ViewSet):
        @once
        def create(self, request: Any, how: str) -> Response:
            return Response(placing.place(how), 201)

        def list(self, request: Any, how: str) -> Response:
            return Response("got")

    return Orders


class Placed(Schema):
    """What is answered."""

    placed: int


class Body(Schema):
    """What is asked."""

    total: int = 0


def _ninja(placing: Placing, once: Any, *, is_async: bool = False, auth: Any = None) -> NinjaAPI:
    api = NinjaAPI(urls_namespace=uuid4().hex, auth=auth)

    def place(request: Any, how: str, body: Body) -> Any:  # noqa: ARG001 - read by Ninja
        if how == "invalid":
            placing.place(how)
            raise HttpError(422, "must be positive")
        return Status(201, placing.place(how))

    async def aplace(request: Any, how: str, body: Body) -> Any:  # noqa: ARG001 - read by Ninja
        return Status(201, await placing.aplace(how))

    api.post("orders/{how}", response={201: Placed})(once(aplace if is_async else place))
    return api


def post(urls: Any, how: str = "placed", key: str | None = "k", client: Any = None, **options: Any) -> Any:
    """Send a request."""
    headers = {**({} if key is None else {"Idempotency-Key": f'"{key}"'}), **options.pop("headers", {})}
    body = {"data": json.dumps({"total": 1}), "content_type": "application/json"} | options
    with override_settings(ROOT_URLCONF=urls):
        return (client or Client(raise_request_exception=False)).post(f"/orders/{how}", headers=headers, **body)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_view_is_done_once(placing: Placing, kind: str) -> None:
    """One order, one message, one key, and a stored response that differs by its mark only."""
    urls = urls_of(kind, placing)
    first, *retries = [post(urls) for _ in range(3)]
    assert (first.status_code, list(json.loads(first.content))) == (201, ["placed"])
    for retry in retries:
        assert (retry.status_code, retry.content) == (201, first.content)
        marked = {**dict(first.items()), "Idempotent-Replayed": "true"}
        assert {name.lower(): value for name, value in retry.items()} == {n.lower(): v for n, v in marked.items()}
    assert (placing.runs, placing.kept()) == (1, (1, 1, 1))
    assert post(urls, data=json.dumps({"total": 2})).status_code == 422


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_kind_of_view_raises_is_rolled_back(placing: Placing, kind: str) -> None:
    """Whatever a framework makes of the exception."""
    urls = urls_of(kind, placing)
    assert [post(urls, "raises").status_code for _ in range(2)] == [404, 404]
    assert (placing.runs, placing.kept()) == (2, (0, 0, 0))


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_view_is_done_once_by_asgi(placing: Placing, kind: str) -> None:
    """In the thread of the request, which has the transaction."""
    urls = urls_of(kind, placing)
    with override_settings(ROOT_URLCONF=urls):
        client = AsyncClient(raise_request_exception=False)
        found = [
            await client.post("/orders/placed", {"total": 1}, content_type="application/json", headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        refused = await client.post("/orders/raises", {}, content_type="application/json", headers={"Idempotency-Key": "r"})
    assert [each.status_code for each in found] == [201, 201]
    assert (refused.status_code, placing.runs) == (404, 2)
    assert await sync_to_async(placing.kept)() == (1, 1, 1)


@pytest.mark.parametrize("kind", ["drf", "drf as_view", "ninja"])
def test_an_exception_that_becomes_a_4xx_is_not_stored(placing: Placing, kind: str) -> None:
    """Its rows are rolled back; a returned 4xx would be committed."""
    urls = urls_of(kind, placing)
    assert [post(urls, "invalid").status_code for _ in range(2)] == [{"ninja": 422}.get(kind, 400)] * 2
    assert (placing.runs, placing.kept()) == (2, (0, 0, 0))


def test_a_request_that_ninja_finds_invalid_takes_no_key(placing: Placing) -> None:
    """Its function is not called."""
    urls = urls_of("ninja", placing)
    assert post(urls, data="{").status_code == 400
    assert post(urls, data='{"total": "x"}').status_code == 422
    assert placing.kept() == (0, 0, 0)
    assert post(urls).status_code == 201


def test_ninja_authenticates_before_a_stored_response_is_given(placing: Placing) -> None:
    """A key and a body that somebody else has seen are not enough."""

    class Secret(APIKeyHeader):
        param_name = "X-Secret"

        def authenticate(self, request: Any, key: str | None) -> Any:
            return key == "secret"

    urls = (path("", _ninja(placing, idempotent(placing.shop), auth=Secret()).urls),)
    assert post(urls, headers={"X-Secret": "secret"}).status_code == 201
    assert post(urls, headers={"X-Secret": "wrong"}).status_code == 401
    assert post(urls, headers={"X-Secret": "secret"})["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("kind", ["class", "async class", "drf", "viewset"])
def test_safe_methods_are_passed_through(placing: Placing, kind: str) -> None:
    """They need no key."""
    with override_settings(ROOT_URLCONF=urls_of(kind, placing)):
        assert b"got" in Client().get("/orders/x").content
    assert placing.kept() == (0, 0, 0)


def test_a_returned_4xx_is_committed(placing: Placing) -> None:
    """As Django does; unless the view has Django roll back."""

    def view(_request: Any, how: str) -> HttpResponse:
        placing.place(how)
        if how == "rolled-back":
            transaction.set_rollback(True, using=ALIAS)
        return HttpResponse("no", status=409)

    urls = (path("orders/<how>", idempotent(placing.shop)(view)),)
    assert [post(urls, how, how).status_code for how in ("a", "a", "rolled-back", "rolled-back")] == [409] * 4
    assert (placing.runs, placing.kept()) == (3, (1, 1, 1))


def test_atomic_requests_do_not_enclose_a_function(placing: Placing) -> None:
    """A method is in Django's block, and committed with it."""
    connections[ALIAS].settings_dict["ATOMIC_REQUESTS"] = True
    seen: list[int] = []

    def view(_request: Any, how: str) -> HttpResponse:
        seen.append(len(connections[ALIAS].atomic_blocks))
        return JsonResponse(placing.place(how), status=201)

    class PlaceOrder(View):
        post = idempotent(placing.shop)(lambda _self, request, how: view(request, how))

    try:
        for each in (idempotent(placing.shop)(view), PlaceOrder.as_view()):
            urls = (path("orders/<how>", each),)
            key = uuid4().hex
            assert [post(urls, key=key).status_code for _ in range(2)] == [201, 201]
            assert post(urls, "raises", key="r").status_code == 404
    finally:
        connections[ALIAS].settings_dict["ATOMIC_REQUESTS"] = False
    assert seen == [1, 1, 2, 2]
    assert placing.kept() == (2, 2, 2)


def test_a_form_with_files_is_compared_by_its_content(placing: Placing) -> None:
    """Also if something has parsed it before, such as the middleware against CSRF."""

    def view(request: Any, how: str) -> HttpResponse:
        placing.place(how)
        return HttpResponse(request.FILES["file"].read() + request.POST["a"].encode())

    def parsed(request: Any, how: str) -> HttpResponse:
        assert request.POST
        return idempotent(placing.shop)(view)(request, how)  # type: ignore[no-any-return]

    urls = (path("orders/<how>", parsed),)

    def send(content: bytes) -> Any:
        file = SimpleUploadedFile("a.txt", content)
        headers = {"Idempotency-Key": "k"}
        with override_settings(ROOT_URLCONF=urls):
            return Client().post("/orders/placed", {"a": "1", "file": file}, headers=headers)

    assert [(each.status_code, each.content) for each in (send(b"x"), send(b"x"))] == [(200, b"x1")] * 2
    assert send(b"y").status_code == 422
    assert placing.runs == 1


def test_a_body_that_was_read_and_not_kept_is_refused(placing: Placing) -> None:
    """Nothing could be compared."""

    def reading(request: Any, how: str) -> HttpResponse:
        request.read()
        return idempotent(placing.shop)(lambda *_: HttpResponse())(request, how)  # type: ignore[no-any-return]

    with pytest.raises(TransactionMisused, match="read before"):
        post((path("orders/<how>", reading),), client=Client())


@pytest.mark.parametrize("kind", ["generator", "file", "async"])
def test_a_response_that_streams_is_stored(placing: Placing, kind: str, tmp_path: Path) -> None:
    """With all of its body."""
    (tmp_path / "a.txt").write_bytes(b"ab")

    async def parts() -> Any:
        for each in ("a", "b"):
            yield each

    makers: dict[str, Callable[[], Any]] = {
        "generator": lambda: StreamingHttpResponse(iter("ab")),
        "file": lambda: FileResponse((tmp_path / "a.txt").open("rb")),
        "async": lambda: StreamingHttpResponse(parts()),
    }

    def view(_request: Any, how: str) -> Any:
        placing.place(how)
        return makers[kind]()

    urls = (path("orders/<how>", idempotent(placing.shop)(view)),)
    assert [post(urls).content for _ in range(2)] == [b"ab"] * 2
    assert placing.runs == 1


def test_another_user_cannot_have_a_response(placing: Placing) -> None:
    """Without a header Authorization, it is the user who is logged in who asks."""

    def as_user(request: Any, how: str) -> HttpResponse:
        request.user = type("User", (), {"pk": request.headers["X-User"], "is_authenticated": True})()
        return once(request, how)  # type: ignore[no-any-return]

    once = idempotent(placing.shop)(lambda _request, how: JsonResponse(placing.place(how)))
    urls = (path("orders/<how>", as_user),)
    assert [post(urls, headers={"X-User": user}).status_code for user in ("1", "1", "2")] == [200, 200, 422]


def test_what_only_a_database_may_do_is_no_outage_without_a_cause(placing: Placing) -> None:
    """An OperationalError of the application's own is its exception."""
    assert post(urls_of("function", placing), "locked").status_code == 500


def test_twice_around_a_view_is_refused(placing: Placing) -> None:
    """The inner one would wait for the outer one's key."""
    once = idempotent(placing.shop)
    with pytest.raises(TransactionMisused, match="inside of idempotent"):
        post((path("orders/<how>", once(once(lambda *_: HttpResponse()))),), client=Client())


def test_what_is_no_view_is_refused(placing: Placing) -> None:
    """When the module is imported."""
    with pytest.raises(SetupError, match="above the methods of Any"):
        idempotent(placing.shop)(type("Any", (View,), {}))
    with pytest.raises(SetupError, match=r"onceonly.integrations.django, not Endpoint of onceonly"):
        idempotent(CoreEndpoint("shop", store="memory://x", transport="memory://x"))  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="not int"):
        idempotent(placing.shop)(3)  # type: ignore[type-var]


async def test_a_request_that_is_cancelled_is_rolled_back(placing: Placing) -> None:
    """As when a client goes away. The thread and its connection serve the next request."""
    at_work = asyncio.Event()

    async def view(_request: Any) -> HttpResponse:
        await placing.aplace("cancelled")
        at_work.set()
        await asyncio.Event().wait()
        return HttpResponse()

    urls = (path("orders", idempotent(placing.shop)(view)), *urls_of("async function", placing))
    with override_settings(ROOT_URLCONF=urls):
        client = AsyncClient(raise_request_exception=False)
        asking = asyncio.create_task(client.post("/orders", headers={"Idempotency-Key": "c"}))
        async with asyncio.timeout(60):
            await at_work.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await sync_to_async(placing.kept)() == (0, 0, 0)
        answer = await client.post("/orders/placed", {}, content_type="application/json", headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201
    assert await sync_to_async(placing.kept)() == (1, 1, 1)


async def test_requests_at_once_do_not_share_a_transaction(placing: Placing) -> None:
    """Even where they share a thread, as in tests: one has it after the other."""
    with override_settings(ROOT_URLCONF=urls_of("async function", placing)):
        client = AsyncClient(raise_request_exception=False)
        found = await asyncio.gather(
            *(
                client.post(
                    f"/orders/{how}", {}, content_type="application/json", headers={"Idempotency-Key": f"{how}{number}"}
                )
                for how in ("placed", "raises")
                for number in range(3)
            )
        )
    assert sorted(each.status_code for each in found) == [201] * 3 + [404] * 3
    assert await sync_to_async(placing.kept)() == (3, 3, 3)


async def test_a_message_in_the_thread_of_the_loop_is_refused_with_a_hint(placing: Placing) -> None:
    """The transaction is in another thread."""

    async def view(_request: Any) -> HttpResponse:
        placing.shop.publish({}, type="Placed")
        return HttpResponse()

    urls = (path("orders", idempotent(placing.shop)(view)),)
    with override_settings(ROOT_URLCONF=urls), pytest.raises(TransactionMisused, match="apublish"):
        await AsyncClient().post("/orders", headers={"Idempotency-Key": "k"})
