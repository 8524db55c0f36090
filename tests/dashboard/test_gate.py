"""The gate before all pages: each route with each role, and each threat with its defence."""

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jinja2 import Environment, nodes
from starlette.authentication import AuthCredentials, SimpleUser

from onceonly import DedupStore, SetupError
from onceonly_dashboard import User, application, basic, bearer, dashboard, hash_password, loopback_only
from onceonly_dashboard.access import FORCE, FREE_FAILURES, ROLES, VIEW, Guesses, TooManyGuesses
from onceonly_dashboard.app import Dashboard, routes
from onceonly_dashboard.gate import CONTENT_SECURITY_POLICY, MOST_FIELDS, MOST_FORM_BYTES
from tests import ROOT
from tests.dashboard.serving import endpoint
from tests.servers.available import free_port

SECRET = "a secret of many characters"  # noqa: S105 - of tests
PASSWORD = "correct horse battery"  # noqa: S105 - of tests
HASH = "scrypt$1024$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AsWvwMY/76m6UtetkFvlJIEPTCAm8Pu2vkYrRktx10s="
SAME = {"sec-fetch-site": "same-origin"}


class SettableTimer:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self) -> float:
        """Return them."""
        return self.now


def named(scope: Mapping[str, Any]) -> User | None:
    """Take the user from a header, as an application takes it from its session."""
    found = dict(scope["headers"]).get(b"x-user", b"")
    return User(found.decode()) if found else None


@asynccontextmanager
async def open_client(app: Any, base: str = "http://localhost", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of an application, and stop the dashboard's sampler at the end."""
    transport = httpx.ASGITransport(app=app, client=options.pop("client", ("127.0.0.1", 1)))
    async with httpx.AsyncClient(transport=transport, base_url=base, **options) as client:
        yield client
    if isinstance(app, Dashboard):
        await app.sampler.stop()


def token(page: str) -> str:
    """Return the token of the first form of a page."""
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found
    return found[1]


def path_of(route: Any) -> str:
    """Return a path that the route serves."""
    name = "dashboard.css" if "static" in route.path else "shop"
    return str(route.path).replace("{name}", name).replace("{key}", "0" * 32).replace("{position}", "1")


def login(name: str, password: str) -> dict[str, str]:
    """Return the header of HTTP Basic."""
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.parametrize("role", [*ROLES, "none"])
async def test_a_route_is_served_to_its_role_alone(role: str) -> None:
    """Each route with each role: the gate decides before the page is called."""
    app = dashboard(
        endpoint(), auth=application(named), roles={"ana": [] if role == "none" else [role]}, secret=SECRET, send_as_new=True
    )
    async with open_client(app, headers={"x-user": "ana"}) as client:
        for route in routes():
            path = path_of(route)
            data = {"token": app.tokens.issue("ana", path), "theme": "dark", "back": "/"}  # type: ignore[attr-defined]
            posted = {"data": data, "headers": SAME} if route.method == "POST" else {}
            response = await client.request(route.method, path, **posted)
            refused = response.status_code == 403
            assert refused == (route.role != role), (route, response.status_code)


async def test_nobody_is_served_without_a_login() -> None:
    """Also not what does not exist, and no style sheet."""
    async with open_client(dashboard(endpoint(), auth=basic({"ana": HASH}))) as client:
        for path in ("/", "/e/shop", "/static/dashboard.css", "/nothing"):
            response = await client.get(path)
            assert (response.status_code, response.headers["www-authenticate"][:5]) == (401, "Basic")
            assert "shop" not in response.text


def test_a_dashboard_needs_a_way_to_log_in() -> None:
    """Mounted in an application of any address."""
    with pytest.raises(SetupError, match="no auth="):
        dashboard(endpoint())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"roles": {"ana": ["admin"]}}, "'admin' is not a role"),
        ({"roles": ["view"]}, "roles must map"),
        ({"hosts": []}, "hosts is empty"),
        ({"hosts": ["https://ops.example.com"]}, "not a host name"),
        ({"hosts": ["ops.example.com:80"]}, "not a host name"),
        ({"hosts": ["*.example.com"]}, "not a host name"),
        ({"secret": "short"}, "secret is shorter"),
        ({"auth": "basic"}, "auth must be"),
    ],
)
def test_settings_that_are_wrong_are_refused(options: dict[str, Any], problem: str) -> None:
    """With the value, and what to write."""
    with pytest.raises(SetupError, match=problem):
        dashboard(endpoint(), **{"auth": loopback_only(), **options})


def test_endpoints_are_named_once() -> None:
    """And there is at least one."""
    with pytest.raises(SetupError, match="two endpoints are named shop"):
        dashboard(endpoint(), endpoint(), auth=loopback_only())
    with pytest.raises(SetupError, match="no endpoint"):
        dashboard(auth=loopback_only())


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "user@localhost", "", "[::1"])
async def test_a_host_that_is_not_listed_is_refused(host: str) -> None:
    """DNS rebinding: the name of the attacker's page resolves to this machine."""
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        response = await client.get("/", headers={"host": host})
        assert response.status_code == 421
        assert "shop" not in response.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8090", "LOCALHOST", "127.0.0.1:1", "[::1]:8090"])
async def test_local_hosts_are_listed_by_default(host: str) -> None:
    """With any port."""
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        assert (await client.get("/", headers={"host": host})).status_code == 200


async def test_loopback_only_looks_at_the_address_that_is_listened_at() -> None:
    """A proxy on the same machine makes each client local."""
    app = dashboard(endpoint(), auth=loopback_only(), hosts=["10.0.0.5", "localhost"])
    async with open_client(app, "http://10.0.0.5", client=("127.0.0.1", 5)) as client:
        assert (await client.get("/")).status_code == 403
    async with open_client(app) as client:
        assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "http://localhost"}, 303),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.test", "sec-fetch-site": "cross-site"}, 403),
        ({}, 403),
    ],
)
async def test_a_form_of_another_origin_is_refused(headers: dict[str, str], status: int) -> None:
    """Even with a valid token and the browser's own credentials."""
    app = dashboard(endpoint(), auth=basic({"ana": HASH}), secret=SECRET)
    async with open_client(app, headers=login("ana", PASSWORD)) as client:
        valid = app.tokens.issue("ana", "/theme")  # type: ignore[attr-defined]
        response = await client.post("/theme", data={"token": valid, "theme": "dark", "back": "/"}, headers=headers)
        assert response.status_code == status


async def test_a_token_is_for_one_user_one_action_and_eight_hours() -> None:
    """Two processes with one secret accept each other's."""
    app = dashboard(endpoint(), auth=application(named), secret=SECRET)
    tokens = dashboard(endpoint(), auth=application(named), secret=SECRET).tokens  # type: ignore[attr-defined]
    other = dashboard(endpoint(), auth=application(named)).tokens  # type: ignore[attr-defined]
    async with open_client(app, headers={"x-user": "ana", **SAME}) as client:

        async def status(value: str) -> int:
            return (await client.post("/theme", data={"token": value, "theme": "dark", "back": "/"})).status_code

        assert await status(token((await client.get("/")).text)) == 303
        assert await status(tokens.issue("ana", "/theme")) == 303
        assert await status(tokens.issue("bob", "/theme")) == 403
        assert await status(tokens.issue("ana", "/dead")) == 403
        assert await status(tokens.issue("ana", "/theme", now=0)) == 403
        assert await status(other.issue("ana", "/theme")) == 403
        assert await status("") == 403
        assert await status("zz.é") == 403
        for digits in ("f" * 5000, "f" * 100_000, "-1", "0x1", "\u0661", "1_0"):
            assert await status(f"{digits}.{tokens.issue('ana', '/theme').partition('.')[2]}") == 403


async def test_guessing_is_slowed_down() -> None:
    """After 5 failures 1 s, twice as long each time, up to 60 s; another user and the right password are not delayed."""
    timer = SettableTimer()
    app = dashboard(endpoint(), auth=basic({"ana": HASH, "bob": HASH}, seconds=timer.seconds))
    async with open_client(app) as client:
        for _ in range(FREE_FAILURES):
            assert (await client.get("/", headers=login("ana", "wrong"))).status_code == 401
        waits = []
        for _ in range(8):
            refused = await client.get("/", headers=login("ana", "wrong"))
            assert refused.status_code == 429
            wait = int(refused.headers["retry-after"])
            waits.append(wait)
            timer.now += wait
            assert (await client.get("/", headers=login("ana", "wrong"))).status_code == 401
        assert waits[:3] == sorted(waits[:3])
        assert max(waits) <= 61
        assert waits[-1] >= 60
        assert (await client.get("/", headers=login("ana", PASSWORD))).status_code == 429
        assert (await client.get("/", headers=login("bob", PASSWORD))).status_code == 200
        timer.now += 61
        assert (await client.get("/", headers=login("ana", PASSWORD))).status_code == 200
        assert (await client.get("/", headers=login("ana", "wrong"))).status_code == 401


def test_waits_double_up_to_a_minute() -> None:
    """From the fifth failure on, and from the beginning after a login. Other clients do not wait."""
    timer = SettableTimer()
    guesses = Guesses(timer.seconds)
    waits = []
    for _ in range(13):
        guesses.failed("ana")
        with suppress(TooManyGuesses):
            guesses.check("ana")
            waits.append(0.0)
            continue
        began = timer.now
        while True:
            try:
                guesses.check("ana")
                break
            except TooManyGuesses as error:
                timer.now += error.seconds
        waits.append(timer.now - began)
        guesses.check("bob")
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    guesses.succeeded("ana")
    guesses.failed("ana")
    guesses.check("ana")


async def test_bearer_tokens_are_hashed_too() -> None:
    """The name that belongs to the token is the user's."""
    app = dashboard(endpoint(), auth=bearer({"ci": HASH}), roles={"ci": [VIEW]})
    async with open_client(app) as client:
        good = await client.get("/", headers={"authorization": f"Bearer {PASSWORD}", "accept": "application/json"})
        assert good.json()["endpoints"][0]["name"] == "shop"
        assert (await client.get("/", headers={"authorization": "Bearer no"})).status_code == 401
        assert (await client.get("/", headers=login("ci", PASSWORD))).status_code == 401


@pytest.mark.parametrize(
    "header", ["Basic", "Basic !!!", "Basic " + base64.b64encode(b"\xff\xfe").decode(), "Basic " + "A" * 9000, "Digest x"]
)
async def test_credentials_that_cannot_be_read_are_refused(header: str) -> None:
    """And fail nothing."""
    async with open_client(dashboard(endpoint(), auth=basic({"ana": HASH}))) as client:
        assert (await client.get("/", headers={"authorization": header})).status_code == 401


@pytest.mark.parametrize(
    "line", ["ana", "ana:plain", "ana:scrypt$99999999$8$5$AAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAA", f"a b:{HASH}", ""]
)
def test_a_file_of_users_that_is_wrong_is_refused(tmp_path: Path, line: str) -> None:
    """The error does not repeat what may be a password."""
    (tmp_path / "users").write_text(line)
    with pytest.raises(SetupError) as raised:
        basic(tmp_path / "users")
    assert "plain" not in str(raised.value)


def test_a_hash_is_of_its_password_and_salted() -> None:
    """Two hashes of one password differ."""
    one, other = hash_password("correct horse"), hash_password("correct horse")
    assert one != other
    assert one.startswith("scrypt$16384$8$5$")
    basic({"ana": one})


async def test_a_file_of_users_is_read(tmp_path: Path) -> None:
    """With comments and empty lines."""
    (tmp_path / "users").write_text(f"# people\n\nana:{HASH}\n")
    async with open_client(dashboard(endpoint(), auth=basic(tmp_path / "users"))) as client:
        assert (await client.get("/", headers=login("ana", PASSWORD))).status_code == 200


async def test_each_response_has_the_headers() -> None:
    """Pages, files, redirects, refusals and failures."""
    app = dashboard(endpoint(), auth=application(named), secret=SECRET)
    async with open_client(app, headers={"x-user": "ana"}) as client:
        paths = [
            "/",
            "/e/shop",
            "/e/none",
            "/settings",
            "/static/dashboard.js",
            "/static/none",
            "/nothing",
            "/settings?endpoint=no",
        ]
        responses = [await client.get(path) for path in paths]
        responses += [
            await client.post("/theme"),
            await client.delete("/"),
            await client.get("/", headers={"host": "evil.test"}),
        ]
        responses += [await client.get("/", headers={"x-user": ""})]
        for response in responses:
            assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["x-frame-options"] == "DENY"


async def test_roles_of_the_application_win_and_read_only_wins_over_all() -> None:
    """Force is nobody's by default."""
    app = dashboard(endpoint(), auth=loopback_only(), roles={"ana": ["view"]}, read_only=True)
    access = app.access  # type: ignore[attr-defined]
    assert access.roles_of(User("ana")) == {"view"}
    assert access.roles_of(User("bob")) == frozenset()
    assert access.roles_of(User("eve", frozenset(ROLES))) == {"view", "body"}
    usual = dashboard(endpoint(), auth=loopback_only()).access  # type: ignore[attr-defined]
    assert usual.roles_of(User("ana")) == set(ROLES) - {FORCE}


async def test_a_read_only_dashboard_has_no_route_that_writes() -> None:
    """The theme is a cookie."""
    app = dashboard(endpoint(), auth=loopback_only(), read_only=True)
    assert [route.path for route in app.routes if route.method == "POST"] == ["/theme"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"theme=" + b"x" * MOST_FORM_BYTES, 413),
        (b"&".join(b"a%d=1" % number for number in range(MOST_FIELDS + 1)), 413),
        (b"theme=%FF", 400),
    ],
)
async def test_a_form_that_is_too_large_is_refused(content: bytes, status: int) -> None:
    """Before anything is done with it."""
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        headers = {"content-type": "application/x-www-form-urlencoded", **SAME}
        assert (await client.post("/theme", content=content, headers=headers)).status_code == status


async def test_other_kinds_of_forms_and_long_addresses_are_refused() -> None:
    """JSON is what scripts of other origins cannot send without open_client; it is refused all the same."""
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        assert (await client.post("/theme", json={"theme": "dark"}, headers=SAME)).status_code == 415
        assert (await client.get("/", params={"a": "x" * 9000})).status_code == 414
        assert (await client.get("/?" + "a=1&" * 60)).status_code == 400


@pytest.mark.parametrize(
    "back", ["//evil.test", "https://evil.test", "/\\evil.test", "/nothing", "javascript:alert(1)", "/\r\nx: y"]
)
async def test_no_form_leads_to_another_site(back: str) -> None:
    """An open redirect helps those who want a password."""
    app = dashboard(endpoint(), auth=loopback_only(), secret=SECRET)
    async with open_client(app) as client:
        value = app.tokens.issue("local", "/theme")  # type: ignore[attr-defined]
        response = await client.post("/theme", data={"token": value, "theme": "dark", "back": back}, headers=SAME)
        assert response.headers["location"] == "/"
        cookie = response.headers["set-cookie"]
        assert "SameSite=strict" in cookie
        assert "HttpOnly" in cookie


async def test_it_is_mounted_under_any_prefix() -> None:
    """Links and forms contain the prefix. It starts to read at the first request."""
    app, inner = FastAPI(), dashboard(endpoint(), auth=loopback_only())
    app.mount("/ops/deep", inner)
    async with open_client(app, follow_redirects=True) as client:
        page = (await client.get("/ops/deep")).text
        assert 'href="/ops/deep/e/shop"' in page
        assert 'action="/ops/deep/theme"' in page
        assert (await client.get("/ops/deep/static/dashboard.css")).status_code == 200
        assert (await client.get("/ops/deep/e/shop")).status_code == 200
    await inner.sampler.stop()  # type: ignore[attr-defined]


async def test_the_user_of_the_application_around_it_stays_there() -> None:
    """Before its own user is known, pages show none, and afterwards the application has its own again."""
    seen: list[Any] = []
    inner = dashboard(endpoint(), auth=basic({"ana": HASH}))

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        scope["user"], scope["auth"] = SimpleUser("host"), AuthCredentials(list(ROLES))
        await inner(scope, receive, send)
        seen.append(scope["user"].display_name)

    async with open_client(outer) as client:
        assert "Signed in" not in (await client.get("/")).text
        assert "Signed in as ana" in (await client.get("/", headers=login("ana", PASSWORD))).text
    assert seen == ["host", "host"]
    await inner.sampler.stop()  # type: ignore[attr-defined]


async def test_the_methods_of_a_page_are_named() -> None:
    """All of them, also where one address has two. HEAD is answered as GET."""
    async with open_client(dashboard(endpoint(), auth=loopback_only())) as client:
        refused = await client.delete("/act/retry")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
        assert (await client.head("/settings")).status_code == 200


async def test_other_connections_than_http_are_closed() -> None:
    """Before anything is read."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await dashboard(endpoint(), auth=loopback_only())({"type": "websocket", "path": "/", "headers": []}, send, send)
    assert sent == ["websocket.close"]


def test_no_template_marks_text_as_safe() -> None:
    """In the syntax trees of the templates: no filter `safe`, no switch of autoescape, nothing inside a script element."""
    templates = sorted((ROOT / "packages/onceonly-dashboard/src/onceonly_dashboard/templates").glob("*.html"))
    assert templates
    for path in templates:
        text = path.read_text(encoding="utf-8")
        tree = Environment(autoescape=True, extensions=["jinja2.ext.do"]).parse(text)
        assert [each.name for each in tree.find_all(nodes.Filter) if each.name in {"safe", "forceescape", "tojson"}] == []
        assert list(tree.find_all(nodes.ScopedEvalContextModifier)) == []
        assert re.findall(r"<script[^>]*>(?!</script>)", text) == []
        assert re.findall(r"\sstyle=|\son\w+=|javascript:", text) == []


def test_the_style_sheet_and_the_script_are_small() -> None:
    """16 kB and 8 kB."""
    static = ROOT / "packages/onceonly-dashboard/src/onceonly_dashboard/static"
    assert (static / "dashboard.css").stat().st_size <= 16_000
    assert (static / "dashboard.js").stat().st_size <= 8_000


@pytest.mark.slow
async def test_no_password_of_a_place_is_shown_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Servers that are away: their URLs are in settings, outages and errors. Each page, as HTML and as JSON, and all logs."""
    caplog.set_level(logging.DEBUG)
    port = free_port()
    away = endpoint(
        "away",
        store=f"postgresql://ana:s3cretpw@127.0.0.1:{port}/shop",
        transport=f"amqp://ana:s3cretpw@127.0.0.1:{port}/",
        deduplication=DedupStore(f"redis://:s3cretpw@127.0.0.1:{port}/0", retention=timedelta(days=1)),
    )
    app = dashboard(away, auth=loopback_only(), roles={"*": list(ROLES)}, send_as_new=True)
    async with open_client(app) as client:
        for probe in app.services.endpoints["away"].all_probes:  # type: ignore[attr-defined]
            await asyncio.gather(client.get("/"), probe.wait_for())
        paths = [path_of(route).replace("shop", "away") for route in routes() if route.method == "GET"]
        paths += [f"{path}?endpoint=away&key={'0' * 32}&source=a&id=b" for path in paths]
        for path in paths:
            for headers in ({}, {"accept": "application/json"}):
                response = await client.get(path, headers=headers)
                assert "s3cretpw" not in response.text, path
                assert "s3cretpw" not in str(response.headers), path
    assert "s3cretpw" not in caplog.text
