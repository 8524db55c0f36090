"""Applications of synchronous frameworks that behave as those of `harness`, and a client that runs them in threads."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any
from wsgiref.types import WSGIApplication, WSGIEnvironment

import flask
import httpx
from flask import Flask
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker
from werkzeug.exceptions import NotFound

from onceonly import Endpoint
from onceonly.integrations import wsgi
from onceonly.integrations.flask import RequestTransaction, idempotent
from tests.sql.enlisted_key_scenarios import sync_engine

ENGINES: list[Engine] = []
"""The engines of the applications of a test."""


class ThreadedWsgiTransport(httpx.AsyncBaseTransport):
    """Runs each request in a thread, as a server does. What the application raises is a response with status 500."""

    def __init__(self, application: WSGIApplication) -> None:
        self.app = application
        self.sent: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Read the request and run the application."""
        body = await request.aread()
        return await asyncio.to_thread(self._serve, environ_of(request, body))

    def _serve(self, environ: WSGIEnvironment) -> httpx.Response:
        started: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], _error: Any = None, /) -> Callable[[bytes], object]:
            started[:] = status, headers
            self.sent.append("start_response")
            return lambda _part: None

        try:
            parts: Iterable[bytes] = self.app(environ, start)
            body = b"".join(parts)
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        except Exception:  # noqa: BLE001 - as a server does
            return httpx.Response(500)
        return httpx.Response(int(started[0][:3]), headers=started[1], content=body)


def environ_of(request: httpx.Request, body: bytes) -> WSGIEnvironment:
    """Return a request as a server passes it: repeated headers in one line, a body in chunks without a length."""
    path = request.url.raw_path.partition(b"?")[0].decode()
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": httpx.URL(path).path.encode().decode("latin-1"),
        "QUERY_STRING": request.url.query.decode(),
        "SERVER_NAME": "shop",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
    }
    for name in {name.lower() for name in request.headers}:
        variable = name.upper().replace("-", "_")
        found = ",".join(request.headers.get_list(name))
        environ[variable if name in {"content-type", "content-length"} else f"HTTP_{variable}"] = found
    return environ


class SyncBehaviour:
    """The behaviour of the asynchronous applications, in a session of the application."""

    def __init__(self, behaviour: Any) -> None:
        self._of = behaviour
        self._loop = asyncio.get_running_loop()

    def begin(self, what: str) -> None:
        """Count the run, and do what the test wants to be done before."""
        self._of.runs[what] += 1
        if self._of.before is not None:
            asyncio.run_coroutine_threadsafe(self._of.before(), self._loop).result()

    def write(self, what: str, tx: RequestTransaction) -> int:
        """Write a row and announce it."""
        from tests.integrations.harness import Line, Written  # noqa: PLC0415 - it imports this module

        self.begin(what)
        line = Line(item=what)
        tx.sql.add(line)
        tx.sql.flush()
        tx.publish(Written(what, line.number))
        if what == "raises":
            raise ZeroDivisionError
        return line.number

    def respond(self, what: str, tx: RequestTransaction) -> flask.Response:
        """Write, and end in this way."""
        number = self.write(what, tx)
        if what == "raises-4xx":
            raise NotFound
        made = {"location": f"/lines/{number}", "x-number": str(number), "set-cookie": "session=secret"}
        if what == "background":
            self._of.afterwards.append("background")
        found: dict[str, Callable[[], Any]] = {
            "created": lambda: flask.Response(f"{number}", 201, made),
            "empty": lambda: flask.Response(status=204),
            "moved": lambda: flask.redirect(f"/lines/{number}", 303),
            "refused": lambda: flask.Response(f"{number}", 409),
            "broken": lambda: flask.Response(f"{number}", 502),
            "streams": lambda: flask.Response(each for each in ("a", "b")),
            "template": lambda: flask.Response(f"line {number}", mimetype="text/html"),
            "too-many": lambda: flask.Response("wait", 429),
            "injected": _injected,
            "large": lambda: flask.Response(bytes((1 << 20) + 1)),
            "background": lambda: flask.Response("done"),
            "bytes": lambda: flask.Response(b"\x00\xffbytes", mimetype="application/octet-stream"),
        }
        return found[what]()  # type: ignore[no-any-return]


def _injected() -> flask.Response:
    response = flask.Response("x")
    response.headers._list.append(("x-a", "b\r\nset-cookie: c=d"))  # Werkzeug itself refuses it
    return response


def flask_application(shop: Endpoint, behave: Any, **terms: Any) -> Flask:
    """Make a Flask application whose view is done once."""
    behaviour, app = SyncBehaviour(behave), Flask("lines")

    @app.route("/lines/<what>", methods=["POST", "PUT"])
    @idempotent(shop, sessions_of(shop), **terms)
    def serve(what: str, tx: RequestTransaction) -> flask.Response:
        return behaviour.respond(what, tx)

    return app


def wsgi_application(shop: Endpoint, behave: Any, **terms: Any) -> WSGIApplication:
    """Make a WSGI application of Flask's parts, without its views."""
    behaviour = SyncBehaviour(behave)

    options = {name: _of_environ(term) for name, term in terms.items()}

    @wsgi.idempotent(shop, sessions_of(shop), **options)
    def serve(environ: WSGIEnvironment, start_response: Any) -> Iterable[bytes]:
        what = environ["PATH_INFO"].rpartition("/")[2]
        try:
            response = behaviour.respond(what, wsgi.transaction(environ))
        except NotFound:
            response = flask.Response("no such thing", 404)
        return response(environ, start_response)

    return serve


def _of_environ(term: Any) -> Any:
    """Let a test's function of a request read the headers of an environ."""
    if not callable(term) or getattr(term, "__name__", "") not in {"user", "tenant"}:
        return term
    return lambda environ: term(flask.Request(environ))


def sessions_of(shop: Endpoint) -> sessionmaker[Any]:
    """Return sessions of the application's own engine on the database of an endpoint."""
    engine = sync_engine(str(shop.settings.store))
    ENGINES.append(engine)
    return sessionmaker(engine)


def close_engines() -> None:
    """Close the connections of all applications."""
    while ENGINES:
        ENGINES.pop().dispose()
