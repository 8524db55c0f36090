"""Dead letters on pages: what is shown to whom, hostile content, redaction, links, downloads; messages that are looked for."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from msgspec.structs import replace

from onceonly import Endpoint, Message, SetupError
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Failure, FailureKind
from onceonly.operations.previews import DEEPEST_JSON, SHOWN_BYTES, preview, shown_headers, shown_traceback
from onceonly_dashboard import application, dashboard, loopback_only
from onceonly_dashboard.access import ROLES
from onceonly_dashboard.gate import DOWNLOAD_POLICY
from onceonly_dashboard.views.letters import check_links, links_of
from tests.dashboard.hostile import LETTERS, MARK, PAYLOADS
from tests.dashboard.serving import NOW, endpoint, letter, store
from tests.dashboard.test_gate import named, open_client

JSON = {"accept": "application/json"}


@asynccontextmanager
async def shown(*letters: DeadLetter, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of a dashboard whose endpoint has these dead letters."""
    async with AsyncExitStack() as stack:
        shop = endpoint()
        await stack.enter_async_context(shop.opened())
        await store(shop, letters)
        app = dashboard(shop, endpoint("billing"), **{"auth": loopback_only(), **options})
        yield await stack.enter_async_context(open_client(app))


async def test_letters_are_grouped_and_paged() -> None:
    """Two failures, two groups; a page of a group has the letters; a filter by type."""
    other = letter(number=9, reason="TimeoutError: no answer", history=())
    async with shown(*(letter(number=number) for number in range(1, 4)), other) as client:
        shop, billing = (await client.get("/dead", headers=JSON)).json()["endpoints"]
        assert (shop["total"], [group["count"] for group in shop["groups"]], billing["groups"]) == (4, [3, 1], [])
        key = shop["groups"][0]["key"]
        page = (await client.get(f"/dead/g/{key}", params={"endpoint": "shop"}, headers=JSON)).json()
        assert (page["total"], len(page["letters"])) == (3, 3)
        everything = (await client.get("/dead/g/all", params={"endpoint": "shop", "type": "Other"}, headers=JSON)).json()
        assert everything["letters"] == []


async def test_a_long_group_has_pages(tmp_path: Path) -> None:
    """Of 100, the newest first in a database; each letter is on one page."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = Endpoint("shop", store=url, transport=url)
    await store(shop, [letter(number=number) for number in range(1, 151)])
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        first = (await client.get("/dead/g/all?endpoint=shop", headers=JSON)).json()
        second = (await client.get(f"/dead/g/all?endpoint=shop&after={first['after']}", headers=JSON)).json()
        ids = [each["id"] for each in first["letters"] + second["letters"]]
        assert ids == [f"A-{number}" for number in range(150, 0, -1)]
        assert (len(first["letters"]), second["after"], first["total"]) == (100, "", 150)


async def test_a_letter_shows_everything_that_is_kept() -> None:
    """Body, headers, attempts, traceback, and what a retry does."""
    async with shown(letter()) as client:
        found = (await client.get(f"/dead/{letter().key}", headers=JSON)).json()
        assert (found["endpoint"], found["id"], found["attempts"]) == ("shop", "A-1", 8)
        assert found["claim"].startswith("This store cannot be asked")
        assert '"order_id": "A-1"' in found["body"]["text"]
        assert ["tenant", "blue"] in found["headers"]
        (attempt,) = found["attempts_kept"]
        assert "gateway.post(order)" in attempt["traceback"]


async def test_bodies_need_a_role() -> None:
    """Without it there is no body, header or traceback, in neither form."""
    options = {"auth": application(named), "roles": {"ana": ["view"]}}
    async with shown(letter(), **options) as client:
        client.headers["x-user"] = "ana"
        for headers in ({}, JSON):
            text = (await client.get(f"/dead/{letter().key}", headers=headers)).text
            assert "order_id" not in text
            assert "gateway.post" not in text
            assert "blue" not in text
        assert (await client.get(f"/dead/{letter().key}/body")).status_code == 403


@pytest.mark.parametrize("key", ["0" * 32, "x", "%27%20OR%201=1", "a" * 500])
async def test_an_unknown_key_is_not_found(key: str) -> None:
    """Also one that is no key."""
    async with shown(letter()) as client:
        assert (await client.get(f"/dead/{key}")).status_code == 404


async def test_a_letter_of_another_endpoint_is_not_found() -> None:
    """Although it is in the same store."""
    foreign = letter("elsewhere")
    async with shown(foreign) as client:
        assert (await client.get(f"/dead/{foreign.key}")).status_code == 404
        assert (await client.get(f"/dead/{foreign.key}/body")).status_code == 404
        assert (await client.get("/dead/g/all?endpoint=elsewhere")).status_code == 404


@pytest.mark.parametrize("body", [b"<script>alert(1)</script>", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"])
async def test_a_body_is_downloaded_and_never_opened_as_a_page(body: bytes) -> None:
    """Whatever its content type says."""
    found = letter(body=body)
    async with shown(found) as client:
        response = await client.get(f"/dead/{found.key}/body")
        assert response.content == body
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"].startswith("attachment")
        assert response.headers["content-security-policy"] == DOWNLOAD_POLICY
        assert response.headers["x-content-type-options"] == "nosniff"


def test_the_hostile_corpus_is_large_enough() -> None:
    """Section 4 of the design asks for 60 payloads."""
    assert len(set(PAYLOADS)) == len(PAYLOADS) >= 60


@pytest.mark.parametrize("hostile", LETTERS, ids=lambda each: each[0])
async def test_hostile_content_is_text(hostile: tuple[str, DeadLetter]) -> None:
    """Every page with it is served in less than 1 s of CPU; markup is escaped, controls are visible, and pages are bounded."""
    name, found = hostile
    text = found.reason[:500]
    reading = ["/", "/dead", "/dead/g/all?endpoint=shop", "/e/shop", f"/dead/{found.key}"]
    reading += [f"/find?{urlencode({'source': text, 'id': text}, errors='surrogatepass')}"]
    reading += [f"/dead/g/all?{urlencode({'endpoint': 'shop', 'type': text}, errors='surrogatepass')}"]
    acting = [f"/act/{act}?endpoint=shop&key={found.key}" for act in ("retry", "delete", "edit", "force")]
    async with shown(found, roles={"*": list(ROLES)}) as client:
        for path in [*reading, *acting, "/actions"]:
            began = process_time()
            response = await client.get(path)
            used = process_time() - began
            assert response.status_code == 200, path
            assert f"<{MARK}" not in response.text.lower(), path
            visible = response.text if "<textarea" not in response.text else response.text.partition("<textarea")[0]
            assert not set("\x00\x07\x1b\x7f\x9b\u202e\u2066\u2028\u200b") & set(visible), path
            assert len(response.content) < 1_000_000, path
            assert used < 1.0, (name, path, used)


async def test_redaction_comes_first() -> None:
    """In both forms, in the download, and for letters without an identity. What the hook removes is gone from the headers."""

    def redact(message: Message) -> Message:
        return replace(message, body=b'"redacted"', headers=())

    whole, nameless = letter(), letter(message=None, body=b"secret-body", history=())
    async with shown(whole, nameless, redact=redact) as client:
        for found in (whole, nameless):
            for headers in ({}, JSON):
                text = (await client.get(f"/dead/{found.key}", headers=headers)).text
                assert "redacted" in text
                assert "order_id" not in text
                assert "secret-body" not in text
                assert "blue" not in text
            assert (await client.get(f"/dead/{found.key}/body")).content == b'"redacted"'


async def test_headers_with_secrets_are_hidden() -> None:
    """By their names."""
    secret = [(name, "s3cret") for name in ("Authorization", "cookie", "X-Api-Key", "ce-token", "session-id", "db-password")]
    found = letter(headers=(*secret, ("tenant", "blue")))
    async with shown(found) as client:
        text = (await client.get(f"/dead/{found.key}")).text
        assert "s3cret" not in text
        assert "blue" in text


def test_previews_are_bounded() -> None:
    """JSON keeps its numbers; what is cut is cut between characters."""
    assert preview(b"").form == "empty"
    number = b'{"n":123456789012345678901234567890.10}'
    assert "123456789012345678901234567890.10" in preview(number).text
    assert preview(b"[" * DEEPEST_JSON + b"]" * DEEPEST_JSON).form == "json"
    assert preview(b"[" * 30_000 + b"]" * 30_000).form == "text"
    assert preview(b"\xff\xfe\x00").form == "hex"
    assert preview(b"\xff\xfe\x00").text == "000000  ff fe 00" + " " * 39 + "  ..."
    long = preview(b"a" + "é".encode() * SHOWN_BYTES)
    assert (long.form, long.cut, long.text[-1]) == ("text", True, "é")
    assert len(preview(bytes(10_000_000)).text) < 50_000
    assert shown_headers(tuple((f"h{number}", "") for number in range(10_000)))[1] == 10_000
    assert len(shown_headers(tuple((f"h{number}", "") for number in range(10_000)))[0]) == 200
    text, cut = shown_traceback("line\n" * 100_000 + "ValueError: end")
    assert (text.endswith("ValueError: end"), cut, len(text) <= 64_000) == (True, True, True)


@pytest.mark.parametrize(
    "links",
    [
        {"x": "javascript:alert({id})"},
        {"x": "https://{id}.example/"},
        {"x": "https://a.example/{password}"},
        {"x": "//evil.test/{id}"},
        {"x": "data:text/html,{id}"},
        ["https://a.example/"],
    ],
)
def test_links_that_lead_where_a_message_says_are_refused(links: Any) -> None:
    """The host is fixed by the settings."""
    with pytest.raises(SetupError):
        check_links(links)


def test_values_in_links_are_encoded() -> None:
    """And a link without its value is left out."""
    odd = 'a/../?#%\\" <b>'
    message = Message(id=odd, source="s", type="t", body=b"")
    found = links_of(
        letter(message=message),
        check_links({"Log": "https://log.example/q?id={id}", "Trace": "https://t.example/{trace}"}),
        "0",
    )
    assert found == [("Log", "https://log.example/q?id=a%2F..%2F%3F%23%25%5C%22%20%3Cb%3E")]
    traced = letter(headers=(("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),))
    assert links_of(traced, {"Trace": "https://t.example/{trace}"}, traced.key) == [("Trace", "https://t.example/" + "a" * 32)]


async def test_a_message_is_found_at_each_endpoint() -> None:
    """A dead letter here, no claim there."""
    async with shown(letter()) as client:
        answers = (await client.get("/find", params={"source": "web", "id": "A-1"}, headers=JSON)).json()["answers"]
        assert [(each["endpoint"], each["found"]) for each in answers] == [
            ("shop", "dead letter"),
            ("billing", "unknown: this endpoint does not store which messages were handled"),
        ]
        assert (await client.get("/find", params={"source": "web", "id": "A-1"})).text.count("Dead letter ") == 1


@pytest.mark.parametrize("value", ["'; DROP TABLE x; --", "%", "\\", "//", "\x00", "\U0001f600" * 100, "<b>"])
async def test_odd_fields_are_data(value: str, tmp_path: Path) -> None:
    """Quotes, wildcards and controls in each field."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = Endpoint("shop", store=url, transport=url)
    await store(shop, [letter()])
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        for path, params in (
            ("/find", {"source": value, "id": value}),
            ("/dead/g/all", {"endpoint": "shop", "type": value, "after": value}),
            ("/dead", {"endpoint": value}),
            ("/settings", {"endpoint": value}),
        ):
            assert (await client.get(path, params=params)).status_code in {200, 400, 404}
        assert (await client.get("/dead/g/all?endpoint=shop", headers=JSON)).json()["total"] == 1


async def test_pending_and_claims_say_what_cannot_be_known(tmp_path: Path) -> None:
    """An endpoint in memory has no time buckets; a database that nobody used has not divided the time."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = Endpoint("shop", store=url, transport=url)
    await store(shop, [letter()])
    async with open_client(dashboard(shop, endpoint("billing"), auth=loopback_only())) as client:
        pending = (await client.get("/pending", headers=JSON)).json()["endpoints"]
        assert [(each["searched"], each["records"]) for each in pending] == [(True, []), (True, [])]
        claims = (await client.get("/claims", headers=JSON)).json()["endpoints"]
        assert [each["picture"] for each in claims] == [None, None]
        assert "the first one divides the time" in claims[0]["why"]
        assert "without time buckets" in claims[1]["why"]
        for path in ("/pending", "/claims"):
            assert (await client.get(path)).status_code == 200


async def test_one_endpoint_away_leaves_the_pages_of_the_others(tmp_path: Path) -> None:
    """Each page says which, and why."""
    url = f"sqlite:///{tmp_path}/missing.db"
    away = Endpoint("away", store=url, transport=url)
    async with open_client(dashboard(endpoint(), away, auth=loopback_only())) as client:
        for path in ("/", "/dead", "/find?source=a&id=b", "/pending", "/claims", "/settings", "/e/shop", "/e/away"):
            response = await client.get(path)
            assert response.status_code in {200, 503}, path
            assert path in {"/", "/settings", "/e/shop"} or "does not exist" in response.text


async def test_a_letter_tells_what_a_retry_does(tmp_path: Path) -> None:
    """From the claims of a database: none was committed, so a retry is safe."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = Endpoint("shop", store=url, transport=url)
    await store(shop, [letter(), letter(number=2, message=None, history=()), letter(number=3, finish_only=True)])
    async with open_client(dashboard(shop, auth=loopback_only())) as client:
        lines = (await client.get("/dead/g/all?endpoint=shop", headers=JSON)).json()["letters"]
        texts = [(await client.get(f"/dead/{each['key']}", headers=JSON)).json()["claim"] for each in lines]
    assert [text.split()[0:3] for text in texts] == [
        ["Its", "handler's", "changes"],
        ["It", "has", "no"],
        ["No", "run", "of"],
    ]


CHAINED = """Traceback (most recent call last):
  File "/app/shop/charge.py", line 41, in charge
    gateway.post(order)
  [Previous line repeated 2 more times]
pydantic.ValidationError: total [input_value='s3cret-card']
  File "/app/x.py", line 1, in s3cret_card
Traceback (most recent call last):

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/shop/place.py", line 9, in place
    charge(order)
ValueError: card s3cret-card was declined
"""


@pytest.mark.parametrize("place", ["sql", "memory"])
@pytest.mark.parametrize("traceback", [CHAINED, "s3cret-card was cut", ""])
async def test_redaction_hides_texts_of_exceptions(tmp_path: Path, place: str, traceback: str) -> None:
    """On each page that shows reasons, as HTML and as JSON, and to users without the role `body` as well."""
    words = "ValueError: card s3cret-card was declined"
    failure = Failure(kind=FailureKind.EXCEPTION, reason=words, traceback=traceback, at=NOW)
    nameless = Failure(kind=FailureKind.REJECTED, reason="s3cret-card is not known", at=NOW)
    found = letter(body=b"s3cret-card", reason=words, history=(nameless, failure))
    unread = letter(number=2, body=b"s3cret-card", reason="no identity: s3cret-card", message=None, history=())
    url = f"sqlite:///{tmp_path}/shop.db" if place == "sql" else f"memory://{tmp_path}"
    shop = endpoint(store=url, transport=url)
    app = dashboard(
        shop,
        auth=application(named),
        roles={"ana": ["view", "body"], "bob": ["view"], "eve": ["view", "retry", "edit"]},
        redact=lambda message: replace(message, body=b"", id="-") if message.id in {"", "A-1"} else message,
    )
    async with AsyncExitStack() as stack:
        if place == "memory":
            await stack.enter_async_context(shop.opened())
        await store(shop, [found, unread, letter(number=3)])
        client = await stack.enter_async_context(open_client(app))
        groups = (await client.get("/dead", headers={**JSON, "x-user": "ana"})).json()["endpoints"][0]["groups"]
        paths = ["/", "/e/shop", "/dead", "/dead/g/all?endpoint=shop", "/find?source=web&id=A-1", "/actions"]
        paths += [f"/dead/{each.key}" for each in (found, unread)]
        paths += [f"/dead/g/{group['key']}?endpoint=shop" for group in groups]
        paths += [f"/act/edit?endpoint=shop&key={each.key}" for each in (found, unread)]
        for user in ("ana", "bob", "eve"):
            for path in paths:
                for headers in ({}, JSON):
                    response = await client.get(path, headers={**headers, "x-user": user})
                    assert response.status_code == 403 or (response.status_code == 200 and "/act/" not in path) or user == "eve"
                    assert "s3cret" not in response.text, (user, path, headers)
        data = (await client.get(f"/dead/{found.key}", headers={**JSON, "x-user": "ana"})).json()
        assert data["reason"] == "ValueError: hidden by redact="
        first, last = data["attempts_kept"]
        assert first["reason"] == "hidden by redact="
        if traceback == CHAINED:
            assert 'File "/app/shop/charge.py", line 41, in charge\n    gateway.post(order)' in last["traceback"]
            assert "pydantic.ValidationError: hidden by redact=" in last["traceback"]
            assert ("ValueError", "place.py place()") in [(group["exception"], group["place"]) for group in groups]
        whole = (await client.get(f"/dead/{letter(number=3).key}", headers={**JSON, "x-user": "ana"})).json()
        assert whole["reason"] == letter().reason
        assert "total is negative: -30" in whole["attempts_kept"][0]["traceback"]


async def test_a_redaction_that_fails_hides_everything() -> None:
    """The page of the letter stands, and so do the lists with it."""

    def redact(message: Message) -> Message:
        raise ValueError(message.body.decode())

    async with shown(letter(), redact=redact) as client:
        for path in (f"/dead/{letter().key}", "/dead", "/dead/g/all?endpoint=shop", "/e/shop"):
            response = await client.get(path)
            assert response.status_code == 200
            assert "order_id" not in response.text
            assert "-30" not in response.text
        assert (await client.get(f"/dead/{letter().key}/body")).content == b""


async def test_a_command_names_the_endpoint_as_the_command_line_did() -> None:
    """Where that is known, so that it can be copied and run."""
    shop = endpoint()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(shop.opened())
        await store(shop, [letter()])
        app = dashboard(shop, auth=loopback_only())
        client = await stack.enter_async_context(open_client(app))
        assert f"onceonly dead retry module:endpoint {letter().key}" in (await client.get(f"/dead/{letter().key}")).text
        app.name_targets(["web.shop:endpoint"])  # type: ignore[attr-defined]
        assert f"onceonly dead retry web.shop:endpoint {letter().key}" in (await client.get(f"/dead/{letter().key}")).text
