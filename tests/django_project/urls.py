"""URLs that each application of a test brings along."""

from collections.abc import Callable
from typing import Any

from django.core.handlers.wsgi import WSGIHandler

urlpatterns: list[Any] = []
_URLS = "tests.urls"


def choose_urls(respond: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Serve the URLs of the application that was called. It is a middleware."""

    def choose(request: Any) -> Any:
        if _URLS in request.META:
            request.urlconf = request.META[_URLS]
        return respond(request)

    return choose


def application_of(*patterns: Any) -> Callable[..., Any]:
    """Return a WSGI application that serves some URLs."""
    handler = WSGIHandler()

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [(name, value.strip()) for name, value in headers], *more)  # as on the wire

        return handler({**environ, _URLS: patterns}, start)

    return serve
