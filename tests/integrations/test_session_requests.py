"""Requests in a session of the application: what views and WSGI applications may do with it, and what is refused."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from io import BytesIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import flask
import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask.views import MethodView
from sqlalchemy import create_engine, select
from sqlalchemy.dialects import registry
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from werkzeug.test import Client, EnvironBuilder

from onceonly import Endpoint
from onceonly.errors import CommitRefused, SetupError, TransactionMisused
from onceonly.integrations import wsgi
from onceonly.integrations.flask import RequestTransaction, Sessions, idempotent
from tests.integrations.harness import Base, Line
from tests.sql.enlisted_key_scenarios import sync_engine

KEY = {"Idempotency-Key": '"k"'}


class Place:
    """An endpoint, sessions on its store, and a Flask application without views."""

    def __init__(self, store: str) -> None:
        self.shop = Endpoint("shop", store=store, transport="memory://places")
        self.shop.handler(type="ignored")(ignore)
        self.engine = sync_engine(store)
        self.sessions = sessionmaker(self.engine)
        self.app = Flask("place")
        self.app.testing = True  # exceptions reach the test

    @property
    def client(self) -> FlaskClient:
        """A client of the application."""
        return self.app.test_client()

    def view(self, function: Callable[..., Any], sessions: Sessions | None = None, **options: Any) -> None:
        """Serve this function at `/`."""
        self.app.post("/")(idempotent(self.shop, sessions or self.sessions, **options)(function))

    def lines(self) -> list[str]:
        """Read what is committed."""
        with self.sessions() as session:
            return list(session.scalars(select(Line.item).order_by(Line.number)))


async def ignore(_body: dict[str, str]) -> None:
    """Do nothing."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Make a file with all tables."""
    found = Place(f"sqlite:///{tmp_path}/shop.db")
    async with found.shop.running():
        pass
    Base.metadata.create_all(found.engine)
    yield found
    found.engine.dispose()


def add(tx: RequestTransaction, item: str = "a") -> None:
    """Add a row."""
    tx.sql.add(Line(item=item))


@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_view_that_ends_its_transaction_is_told_so(place: Place, how: str, *, is_swallowed: bool) -> None:
    """Whatever it makes of the error: nothing is stored."""

    def view(tx: RequestTransaction) -> str:
        add(tx)
        try:
            getattr(tx.sql, how)()
        except TransactionMisused:
            if not is_swallowed:
                raise
        add(tx, "b")
        return "done"

    place.view(view)
    with pytest.raises(TransactionMisused, match=r"commit\(\)"):
        place.client.post("/", headers=KEY)
    assert place.lines() == []


def test_a_view_may_use_savepoints(place: Place) -> None:
    """What is rolled back to one is not committed."""

    def view(tx: RequestTransaction) -> str:
        add(tx)
        with tx.sql.begin_nested():
            add(tx, "b")
        with tx.sql.begin_nested() as savepoint:
            add(tx, "c")
            savepoint.rollback()
        return "done"

    place.view(view)
    assert [place.client.post("/", headers=KEY).text for _ in range(2)] == ["done"] * 2
    assert place.lines() == ["a", "b"]


def test_a_savepoint_that_is_left_open_is_refused(place: Place) -> None:
    """The commit would end it only."""

    def view(tx: RequestTransaction) -> str:
        tx.sql.begin_nested()
        add(tx)
        return "done"

    place.view(view)
    with pytest.raises(TransactionMisused, match="savepoint"):
        place.client.post("/", headers=KEY)


def test_the_applications_own_session_is_committed_and_not_closed(place: Place) -> None:
    """A scoped session, as Flask-SQLAlchemy has one; helpers use it without being given the transaction."""
    registry = scoped_session(place.sessions)

    def view(tx: RequestTransaction) -> str:
        assert tx.sql is registry()
        registry.add(Line(item="a"))
        return "done"

    place.view(view, registry)
    for _ in range(2):
        assert place.client.post("/", headers=KEY).text == "done"
        assert not registry().in_transaction()
        assert registry.scalars(select(Line.item)).all() == ["a"]
        registry.rollback()
    registry.remove()


@pytest.mark.parametrize("status", ["201 Made", "299 Whatever"])
def test_a_repetition_has_the_same_reason_phrase(place: Place, status: str) -> None:
    """Only the number is stored, so the first response has its standard phrase as well."""
    place.view(lambda **_: flask.Response("a", status=status))
    first, again = (place.client.post("/", headers=KEY) for _ in range(2))
    assert first.status == again.status
    assert first.status_code == int(status[:3])


def test_an_application_with_a_response_class_of_its_own_can_repeat(place: Place) -> None:
    """Flask passes the status by name, so a class may have no place for it."""

    class Plain(flask.Response):
        def __init__(self, response: Any = None, **options: Any) -> None:
            super().__init__(response, **options)
            self.headers["x-made-by"] = "Plain"

    place.app.response_class = Plain
    place.view(lambda **_: "a")
    for _ in range(2):
        with place.app.request_context(environ(b"")):
            answer = place.app.full_dispatch_request()
        assert (answer.status_code, answer.headers["x-made-by"]) == (200, "Plain")


def test_a_request_that_is_handled_once_twice_is_refused(place: Place) -> None:
    """The inner one would wait for the outer one, and its refusal would be stored for each repetition."""
    inner = idempotent(place.shop, place.sessions)(lambda **_: "a")
    place.view(lambda **_: inner())
    place.app.post("/plain", endpoint="plain")(inner)
    with pytest.raises(TransactionMisused, match="inside of idempotent"):
        place.client.post("/", headers=KEY)
    enclosed = wsgi.idempotent(place.shop, place.sessions)(place.app.wsgi_app)
    with pytest.raises(TransactionMisused, match="inside of idempotent"):
        Client(enclosed).post("/plain", headers=KEY)
    assert place.client.post("/plain", headers=KEY).text == "a"


def test_a_session_may_use_another_driver_than_the_store(postgresql_url: str) -> None:
    """Such as psycopg2: what the store's adapter cannot open, it need not open."""
    registry.register("postgresql.another", "sqlalchemy.dialects.postgresql.psycopg", "PGDialect_psycopg")
    place = Place(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
    engine = create_engine(postgresql_url.replace("postgresql:", "postgresql+another:"))
    place.view(lambda **_: flask.abort(404), sessionmaker(engine), key_required=False)
    try:
        assert place.client.post("/").status_code == 404
    finally:
        engine.dispose()
        place.engine.dispose()


def test_what_was_pending_before_is_committed_once(place: Place) -> None:
    """A session that is in a transaction already is used as it is."""
    session = place.sessions()

    def view(tx: RequestTransaction) -> str:
        add(tx)
        return "done"

    place.view(view, lambda: session)
    for _ in range(2):
        session.add(Line(item="before"))
        assert place.client.post("/", headers=KEY).text == "done"
    assert place.lines() == ["before", "a"]
    session.close()


def test_one_session_for_two_requests_at_once_is_refused(place: Place) -> None:
    """Their rows would be committed together."""
    session = place.sessions()

    def view(**_: RequestTransaction) -> Any:
        return place.client.post("/", headers={"Idempotency-Key": '"other"'}).text

    place.view(view, lambda: session)
    with pytest.raises(TransactionMisused, match="used by another request at the same time"):
        place.client.post("/", headers=KEY)
    session.close()


@pytest.mark.parametrize("sessions", [async_sessionmaker(), create_engine("sqlite://"), Session(), None])
def test_what_gives_no_session_is_refused(place: Place, sessions: Any) -> None:
    """When the view is made, or at the first request."""
    with pytest.raises(SetupError, match="sessions="):  # noqa: PT012 - at either place
        place.app.post("/")(idempotent(place.shop, sessions)(lambda **_: "done"))
        place.client.post("/", headers=KEY)


def test_asynchronous_views_are_refused(place: Place) -> None:
    """Their session would be another one."""

    async def view(**_: RequestTransaction) -> str:
        return "done"

    with pytest.raises(SetupError, match="must be a `def`"):
        place.view(view)


def test_an_error_that_is_caught_without_a_savepoint_refuses_the_commit(place: Place) -> None:
    """SQLAlchemy has undone everything by then."""

    def view(tx: RequestTransaction) -> str:
        tx.sql.add(Line(number=1, item="a"))
        tx.sql.flush()
        tx.sql.add(Line(number=1, item="b"))
        with pytest.raises(IntegrityError):
            tx.sql.flush()
        return "done"

    place.view(view)
    answer = place.client.post("/", headers=KEY)
    assert (answer.status_code, answer.get_json()["code"], place.lines()) == (500, "commit-refused", [])


@pytest.mark.parametrize("of", ["application", "blueprint"])
def test_an_application_may_say_what_a_refused_commit_means(place: Place, of: str) -> None:
    """By an error handler, as for every other exception."""

    def view(tx: RequestTransaction) -> str:
        tx.sql.add_all([Line(number=1, item="a"), Line(number=1, item="b")])
        return "done"

    owner: Any = place.app if of == "application" else flask.Blueprint("orders", "orders")
    owner.post("/")(idempotent(place.shop, place.sessions)(view))
    owner.errorhandler(CommitRefused)(lambda _error: ("taken", 409))
    if of == "blueprint":
        place.app.register_blueprint(owner)
    answer = place.client.post("/", headers=KEY)
    assert (answer.status_code, answer.text) == (409, "taken")


def test_the_body_can_be_read_in_the_view(place: Place) -> None:
    """As a form with a file, although it was read before; and equal forms are one request."""

    def view(tx: RequestTransaction) -> str:
        request = flask.request
        add(tx)
        return f"{request.form['name']} {request.files['file'].read().decode()}"

    place.view(view)
    for boundary in ("one", "two"):
        builder = EnvironBuilder(data={"name": "ann", "file": (BytesIO(b"text"), "a.txt")}, method="POST", headers=KEY)
        environ = builder.get_environ()
        old = environ["CONTENT_TYPE"].partition("boundary=")[2].strip('"')
        body = environ["wsgi.input"].read().lstrip(b"\r\n").replace(old.encode(), boundary.encode())
        kind = environ["CONTENT_TYPE"].replace(old, boundary)
        answer = place.client.post("/", data=body, content_type=kind, headers=KEY)
        assert (answer.status_code, answer.text) == (200, "ann text")
    assert place.lines() == ["a"]


@pytest.mark.parametrize(("read", "works"), [("get_json", True), ("get_data", True), ("form", False)])
def test_a_body_that_was_read_before_the_view_must_have_been_kept(place: Place, read: str, *, works: bool) -> None:
    """Without it two requests could not be told apart."""

    @place.app.before_request
    def look() -> None:
        if read == "form":
            assert flask.request.form["a"] == "1"
        else:
            getattr(flask.request, read)()

    place.view(lambda **_: "done")
    kind = {"data": {"a": "1"}} if read == "form" else {"json": {"a": "1"}}
    if works:
        assert place.client.post("/", headers=KEY, **kind).text == "done"
        assert place.client.post("/", headers=KEY, json={"a": "2"}).status_code == 422
    else:
        with pytest.raises(TransactionMisused, match="was read before its view"):
            place.client.post("/", headers=KEY, **kind)


def test_a_method_of_a_view_class_can_be_decorated(place: Place) -> None:
    """The other methods stay as they are."""

    class Orders(MethodView):
        def get(self) -> str:
            return "orders"

        @idempotent(place.shop, place.sessions)
        def post(self, tx: RequestTransaction) -> str:
            add(tx)
            return "done"

    place.app.add_url_rule("/", view_func=Orders.as_view("orders"))
    assert place.client.get("/").text == "orders"
    assert [place.client.post("/", headers=KEY).text for _ in range(2)] == ["done"] * 2
    assert place.lines() == ["a"]


def test_a_stream_of_events_is_refused(place: Place) -> None:
    """It has no end."""
    place.view(lambda **_: flask.Response(iter(["data: 1\n\n"]), mimetype="text/event-stream"))
    with pytest.raises(TransactionMisused, match="has no end"):
        place.client.post("/", headers=KEY)


def test_a_file_is_stored_as_a_response(place: Place, tmp_path: Path) -> None:
    """The repetition gets its bytes, though the file is gone."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"text")
    place.view(lambda **_: flask.send_file(file))
    first = place.client.post("/", headers=KEY)
    file.unlink()
    again = place.client.post("/", headers=KEY)
    assert (first.data, again.data, first.content_type) == (b"text", b"text", again.content_type)


def environ(body: bytes, **changes: Any) -> dict[str, Any]:
    """Return a request as a server passes it."""
    found = EnvironBuilder(method="POST", data=body, headers=KEY, content_type="text/plain").get_environ()
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"CONTENT_LENGTH": "9"},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "x"},
        {"CONTENT_LENGTH": None, "HTTP_TRANSFER_ENCODING": "chunked"},
    ],
)
def test_a_body_without_a_certain_end_is_a_400(place: Place, changes: dict[str, Any]) -> None:
    """The client went away, or the server does not say where it ends."""
    place.view(lambda **_: "done")
    with place.app.request_context(environ(b"half", **changes)):
        answer = place.app.full_dispatch_request()
    assert (answer.status_code, flask.json.loads(answer.data)["code"]) == (400, "incomplete")


def wsgi_client(place: Place, application: Any) -> Client:
    """Return a client of a WSGI application that is done once."""
    return Client(wsgi.idempotent(place.shop, place.sessions)(application))


class Parts:
    """A body that notes when it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        yield b"b"

    def close(self) -> None:
        """Note it."""
        self.closed += 1


def test_a_wsgi_application_may_write_and_is_closed(place: Place) -> None:
    """As PEP 3333 has it."""
    parts = Parts()

    def application(environ: Any, start_response: Any) -> Parts:
        wsgi.transaction(environ).sql.add(Line(item="a"))
        start_response("201 Made", [("X-A", "1")])(b"a")
        return parts

    client = wsgi_client(place, application)
    answers = [client.post("/", headers=KEY) for _ in range(2)]
    assert [(each.status_code, each.data, each.headers["X-A"]) for each in answers] == [(201, b"ab", "1")] * 2
    assert (parts.closed, place.lines()) == (1, ["a"])


def test_an_error_of_a_wsgi_application_replaces_its_response_until_a_part_was_written(place: Place) -> None:
    """Then it is raised."""

    def application(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("201 Created", [])
        if environ["PATH_INFO"] == "/written":
            write(b"a")
        try:
            1 / 0  # noqa: B018 - it raises
        except ZeroDivisionError:
            start_response("422 Unprocessable Content", [], sys.exc_info())
        return [b"no"]

    client = wsgi_client(place, application)
    assert client.post("/", headers=KEY).status_code == 422
    with pytest.raises(ZeroDivisionError):
        client.post("/written", headers={"Idempotency-Key": "other"})


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ([], "without calling start_response"),
        (["200 OK", "200 OK"], "called start_response twice"),
        (["OK"], "does not begin with a number"),
    ],
)
def test_what_is_no_response_of_wsgi_is_refused(place: Place, starts: list[str], words: str) -> None:
    """Nothing is stored."""

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        for each in starts:
            start_response(each, [])
        return []

    with pytest.raises(TransactionMisused, match=words):
        wsgi_client(place, application).post("/", headers=KEY)


def test_an_application_of_any_framework_can_be_enclosed(place: Place) -> None:
    """Here Flask's; safe methods are passed through, and have no transaction."""

    @place.app.route("/", methods=["GET", "POST"])
    def view() -> str:
        wsgi.transaction(flask.request.environ).sql.add(Line(item="a"))
        return "done"

    client = wsgi_client(place, place.app)
    assert [client.post("/", headers=KEY).text for _ in range(2)] == ["done"] * 2
    assert place.lines() == ["a"]
    with pytest.raises(TransactionMisused, match="is a safe method"):
        client.get("/")


GREENLETS = """
    import sys
    import gevent
    if "before" in sys.argv:
        gevent.monkey.patch_all()
    from onceonly import Endpoint
    from onceonly.errors import SetupError
    from onceonly.integrations.wsgi import idempotent
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker
    from werkzeug.test import Client
    if "after" in sys.argv:
        gevent.monkey.patch_all()
    shop = Endpoint("shop", store="sqlite:///none.db", transport="memory://x")
    app = idempotent(shop, sessionmaker(create_engine("sqlite://")))(lambda environ, start: [])
    def post():
        try:
            Client(app).post("/", headers={"Idempotency-Key": "k"})
        except SetupError as error:
            print(error)
    gevent.spawn(post).join()
"""


@pytest.mark.parametrize(
    ("when", "words"),
    [("never", "only in part or not at all"), ("after", "after the application was imported"), ("before", "session writes to")],
)
async def test_greenlets_of_a_process_that_gevent_has_not_patched_first_are_refused(when: str, words: str) -> None:
    """Where it was patched first, the request goes on, to a session of another database."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", "import gevent.monkey\n" + dedent(GREENLETS), when),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert words in output.decode()


def test_the_application_is_imported_without_a_database() -> None:
    """So a server may fork afterwards."""
    shop = Endpoint("shop", store="postgresql+psycopg://nobody@127.0.0.1:1/none", transport="amqp://127.0.0.1:1/")
    sessions = sessionmaker(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    app = Flask("app")
    app.post("/")(idempotent(shop, sessions)(lambda **_: "done"))
    answer = app.test_client().post("/", headers=KEY)
    assert (answer.status_code, answer.get_json()["code"]) == (503, "not-done")
