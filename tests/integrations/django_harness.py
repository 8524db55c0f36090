"""An application of Django that behaves as those of `harness`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from onceonly import Endpoint as CoreEndpoint
from onceonly.endpoint.host import host_of
from tests.django_project import alias_of, set_up
from tests.integrations.sync_harness import SyncBehaviour

set_up()

from django.http import Http404, HttpResponse, HttpResponseRedirect, StreamingHttpResponse  # noqa: E402 - set up before
from django.template import engines  # noqa: E402 - the same
from django.template.response import SimpleTemplateResponse  # noqa: E402 - the same
from django.urls import path  # noqa: E402 - the same
from django.views.decorators.http import require_http_methods  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, idempotent  # noqa: E402 - the same
from tests.django_project.models import RequestLine  # noqa: E402 - the same
from tests.django_project.urls import application_of  # noqa: E402 - the same

ALIASES = ExitStack()
"""The databases of the applications of a test."""


class DjangoBehaviour(SyncBehaviour):
    """The behaviour of the other applications, on Django's connection."""

    def __init__(self, behaviour: Any, shop: Endpoint) -> None:
        super().__init__(behaviour)
        self._shop = shop

    def place(self, what: str) -> int:
        """Write a row and announce it."""
        from tests.integrations.harness import Written  # noqa: PLC0415 - it imports this module

        self.begin(what)
        number: int = RequestLine.objects.using(self._shop.database).create(item=what).number
        self._shop.publish(Written(what, number))
        if what == "raises":
            raise ZeroDivisionError
        if what == "raises-4xx":
            raise Http404
        return number

    def view(self, what: str) -> HttpResponse:
        """Write, and end in this way."""
        number = self.place(what)
        if what == "background":
            self._of.afterwards.append("background")
        found: dict[str, Callable[[], Any]] = {
            "created": lambda: _created(number),
            "empty": lambda: HttpResponse(status=204),
            "moved": lambda: HttpResponseRedirect(f"/lines/{number}", status=303),
            "refused": lambda: HttpResponse(f"{number}", status=409),
            "broken": lambda: HttpResponse(f"{number}", status=502),
            "streams": lambda: StreamingHttpResponse(each for each in ("a", "b")),
            "template": lambda: _template(number),
            "too-many": lambda: HttpResponse("wait", status=429),
            "injected": _injected,
            "large": lambda: HttpResponse(bytes((1 << 20) + 1)),
            "background": lambda: HttpResponse("done"),
            "bytes": lambda: HttpResponse(b"\x00\xffbytes", content_type="application/octet-stream"),
        }
        return found[what]()  # type: ignore[no-any-return]


def _created(number: int) -> HttpResponse:
    response = HttpResponse(f"{number}", status=201, headers={"location": f"/lines/{number}", "x-number": str(number)})
    response.set_cookie("session", "secret")
    response.cookies["session"]["path"] = ""
    return response


def _template(number: int) -> HttpResponse:
    return SimpleTemplateResponse(engines["django"].from_string("line {{ number }}"), {"number": number})


def _injected() -> HttpResponse:
    response = HttpResponse("x")
    response.headers._store["x-a"] = ("x-a", "b\r\nset-cookie: c=d")  # Django itself refuses it
    return response


def django_application(shop: CoreEndpoint, behave: Any, **terms: Any) -> Any:
    """Make an application of Django on the database of an endpoint. What it commits is sent by that endpoint's relay."""
    store = str(shop.settings.store)
    alias = ALIASES.enter_context(alias_of(f"web_{uuid4().hex[:8]}", store))
    own = Endpoint(shop.name, database=alias, store=store, transport=shop.settings.transport)
    host_of(own).notifier = host_of(shop).notifier
    behaviour = DjangoBehaviour(behave, own)

    @require_http_methods(["POST", "PUT"])
    @idempotent(own, **terms)
    def serve(_request: Any, what: str) -> HttpResponse:
        return behaviour.view(what)

    return application_of(path("lines/<what>", serve))


def close_aliases() -> None:
    """Forget the databases of all applications. Django refuses to close connections in the thread of an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ALIASES.close).result()
