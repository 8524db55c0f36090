"""Export of letters as files, and import of a changed body: what is in them, what is hidden, and what is refused."""

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.datastructures import Headers

from onceonly.assembly import open_transport
from onceonly.cli.events import BadItem
from onceonly.cli.letter_lines import from_line
from onceonly.dashboard import application, dashboard
from onceonly.dashboard.app import Dashboard
from onceonly.dashboard.gate import MOST_FIELDS, MOST_FORM_BYTES, MOST_UPLOAD_BYTES, Refused, Upload, read_upload
from onceonly.dashboard.views import confirming, exporting
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.escaped import RAW_HEADER
from onceonly.model.message import Message
from tests.dashboard.serving import endpoint, letter, store
from tests.dashboard.test_actions import JSON, Shop, opened
from tests.dashboard.test_gate import SAME, asking, named

EVERY_BYTE = bytes(range(256))


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the letters of a file."""
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.content.splitlines()]


async def exported(shop: Shop, query: str) -> httpx.Response:
    """Confirm an export on its page."""
    return await shop.send("/act/export", await shop.form(f"/act/export?endpoint=shop&{query}"))


@pytest.mark.parametrize("body", [EVERY_BYTE, b"x" * ((1 << 20) + 1), b""], ids=["not UTF-8", "over 1 MiB", "empty"])
async def test_a_letter_is_exported_exactly(tmp_path: Path, body: bytes) -> None:
    """As the command does: what has nothing to hide can be imported by it."""
    message = Message(id="A-1", source="web", type="PlaceOrder", body=body, headers=(("tenant", "blue"),))
    original = letter(message=message, body=body)
    async with opened(tmp_path, original, letter(number=2)) as shop:
        response = await exported(shop, f"key={original.key}")
        assert from_line(response.content, 1) == original
        headers = response.headers
        assert headers["content-disposition"] == f'attachment; filename="{original.key}.jsonl"'
        assert headers["content-security-policy"].startswith("sandbox")
        assert (headers["content-type"], headers["x-content-type-options"]) == ("application/octet-stream", "nosniff")
        (row,) = (await shop.page("/actions"))["actions"]
        assert (row["actor"], row["action"], row["state"], row["reason"], row["done"]) == (
            "ana",
            "export",
            "done",
            "because",
            1,
        )
        assert (await shop.page("/dead"))["endpoints"][0]["total"] == 2


async def test_a_group_is_exported_page_by_page(tmp_path: Path) -> None:
    """All of its letters in order, and no others. One that comes after the confirmation is not part of it."""
    count = exporting.PAGE * 2 + 1
    letters = [letter(number=number) for number in range(1, count + 1)]
    other = letter(number=999, reason="TimeoutError: no answer", history=())
    async with opened(tmp_path, *letters, other) as shop:
        groups = (await shop.page("/dead"))["endpoints"][0]["groups"]
        found = lines(await exported(shop, f"group={groups[0]['key']}"))
        assert [each["key"] for each in found] == [each.key for each in letters]
        assert len(lines(await exported(shop, "group=all"))) == count + 1
        fields = await shop.form("/act/export?endpoint=shop&group=all")
        await store(shop.app.watched["shop"].endpoint, [letter(number=1000)])
        assert (await shop.send("/act/export", fields)).status_code == 409
        assert await shop.states() == ["refused", "done", "done"]


async def test_a_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above it, the page names the command."""
    async with opened(tmp_path, letter(), letter(number=2)) as shop:
        fields = await shop.form("/act/export?endpoint=shop&group=all")
        monkeypatch.setattr(confirming, "MOST_EXPORTED", 1)
        monkeypatch.setattr(exporting, "MOST_EXPORTED", 1)
        page = await shop.client.get("/act/export?endpoint=shop&group=all")
        assert (page.status_code, "onceonly dead export" in page.text) == (400, True)
        assert (await shop.send("/act/export", fields)).status_code == 400
        assert await shop.states() == ["refused"]


def secretive() -> DeadLetter:
    """Make a letter with a secret in each place that pages hide."""
    message = Message(
        id="A-1",
        source="web",
        type="PlaceOrder",
        body=b'{"order_id": "A-1"}',
        headers=(("x-api-key", "hunter2"), ("tenant", "blue")),
        extensions=(("token", "hunter2"), ("causationid", "c")),
    )
    raw = " ".join(base64.b64encode(part).decode() for part in (b"cookie\xff", b"hunter2"))
    headers = (("x-api-key", "hunter2"), ("ce-token", "hunter2"), (RAW_HEADER, raw), ("tenant", "blue"))
    return letter(message=message, body=message.body, headers=headers)


async def test_secrets_are_not_exported(tmp_path: Path) -> None:
    """The names stay. Such a line is not imported as a letter: the message would be sent without them."""
    async with opened(tmp_path, secretive()) as shop:
        response = await exported(shop, f"key={secretive().key}")
        assert b"hunter2" not in response.content
        assert base64.b64encode(b"hunter2") not in response.content
        (line,) = lines(response)
        assert (line["key"], line["redacted"]) == (secretive().key, True)
        assert line["message"]["headers"] == [["x-api-key", "hidden"], ["tenant", "blue"]]
        assert line["message"]["extensions"] == [["token", "hidden"], ["causationid", "c"]]
        with pytest.raises(BadItem, match="hidden fields"):
            from_line(response.content, 1)


async def test_an_export_is_redacted(tmp_path: Path) -> None:
    """Body, headers and texts of exceptions, also those that a header repeats, and everything if the hook fails."""

    def redact(message: Message) -> Message:
        if message.id == "A-2":
            raise ValueError(message.body)
        return msgspec.structs.replace(message, body=b"{}", headers=())

    history = '[{"kind":"exception","reason":"ValueError: total is negative: -30"}]'
    headers = (("ce-id", "A-1"), ("ce-onceonlyhistory", history), ("tenant", "blue"))
    async with opened(tmp_path, letter(headers=headers), letter(number=2), redact=redact) as shop:
        response = await exported(shop, "group=all")
        for text in (b"-30", b"blue", base64.b64encode(letter().body), base64.b64encode(letter(number=2).body)):
            assert text not in response.content
        first, second = lines(response)
        assert base64.b64decode(first["message"]["body"]) == base64.b64decode(first["body"]) == b"{}"
        assert (first["key"], first["redacted"], second["redacted"]) == (letter().key, True, True)
        assert second["message"]["type"] == "hidden by redact="


async def test_an_export_needs_a_form_a_role_and_a_dashboard_that_writes(tmp_path: Path) -> None:
    """It shows bodies, and it stores who took them."""
    key = letter().key
    roles = {"ana": ["view", "body"], "bob": ["view", "retry"]}
    async with opened(tmp_path, letter(), roles=roles) as shop:
        path = f"/act/export?endpoint=shop&key={key}"
        assert (await shop.client.get(path, headers={"x-user": "bob"})).status_code == 403
        assert "/act/export" not in (await shop.client.get(f"/dead/{key}", headers={"x-user": "bob"})).text
        assert "/act/export" in (await shop.client.get(f"/dead/{key}")).text
        fields = await shop.form(path)
        cross = {"sec-fetch-site": "cross-site"}
        assert (await shop.client.post("/act/export", data=fields, headers=cross)).status_code == 403
        assert (await shop.client.post("/act/export", data=fields | {"token": "x"})).status_code == 403
        foreign = fields | {"key": letter("elsewhere").key}
        assert (await shop.client.post("/act/export", data=foreign, headers=JSON)).status_code == 404
        assert await shop.states() == ["refused"]
        assert (await shop.send("/act/export", fields)).status_code == 200
        assert (await shop.send("/act/export", fields)).status_code == 409
    async with opened(tmp_path, read_only=True) as shop:
        assert (await shop.client.get(f"/act/export?endpoint=shop&key={key}")).status_code == 404
        assert "/act/export" not in (await shop.client.get(f"/dead/{key}")).text


async def test_letters_without_positions_are_exported() -> None:
    """As in document stores. The action is in the log of this process."""
    count, shop = exporting.PAGE + 1, endpoint()
    app = dashboard(shop, auth=application(named))
    assert isinstance(app, Dashboard)
    async with shop.opened(), asking(app, headers={"x-user": "ana", **SAME}) as client:
        await store(shop, [letter(number=number) for number in range(1, count + 1)])
        found = lines(await exported(Shop(app, client, ""), "group=all"))
        assert len({each["key"] for each in found}) == count


async def imported(shop: Shop, key: str, body: bytes, **changes: str) -> httpx.Response:
    """Send the form of an import, with a file."""
    fields = await shop.form(f"/act/import?endpoint=shop&key={key}") | {"step": "review"} | changes
    files = {"file": ("body.bin", body, "application/octet-stream")}
    response = await shop.client.post("/act/import", data=fields, files=files)
    await shop.app.acting.settled()
    return response


async def sent_body(shop: Shop) -> tuple[dict[str, str], bytes]:
    """Return headers and body of the one message that was sent."""
    async with open_transport(shop.url, "shop") as transport:
        (delivery,) = await transport.receive(10, 5.0)
    return dict(delivery.headers), delivery.body


def raw(body: bytes) -> DeadLetter:
    """Make a letter whose handler takes any bytes."""
    message = Message(id="A-1", source="web", type="Blob", body=body, datacontenttype="application/octet-stream")
    return letter(message=message, body=body)


TRICKY = b"\r\n--other--\r\n\x00\xff\r\n\r\n" + EVERY_BYTE + b"\r\n"


@pytest.mark.parametrize("before", [EVERY_BYTE, b"x" * ((1 << 20) + 1), b"a\r\nb\nc"], ids=["bytes", "over 1 MiB", "line ends"])
@pytest.mark.parametrize("after", [TRICKY, b""], ids=["tricky", "empty"])
async def test_a_body_is_imported_where_the_form_refuses(tmp_path: Path, before: bytes, after: bytes) -> None:
    """The same bytes, reviewed first, under the same id. The letter can be restored."""
    found = raw(before)
    async with opened(tmp_path, found) as shop:
        link = f"/act/import?endpoint=shop&amp;key={found.key}"
        assert link in (await shop.client.get(f"/act/edit?endpoint=shop&key={found.key}")).text
        assert (await shop.client.get(f"/dead/{found.key}/body?of=message")).content == before
        review = await imported(shop, found.key, after)
        assert (review.status_code, await shop.queue()) == (200, 0), review.text
        digest = sha256(after).hexdigest()
        assert f'name="sha256" value="{digest}"' in review.text
        sent = await imported(shop, found.key, after, step="send", sha256=digest)
        assert (sent.status_code, sent.headers["location"]) == (303, "/actions/shop/1")
        headers, body = await sent_body(shop)
        assert (headers["ce-id"], headers["ce-source"], headers["content-type"]) == ("A-1", "web", "application/octet-stream")
        assert body == after
        row = (await shop.page("/actions/shop/1"))["action"]
        assert (row["actor"], row["action"], row["reason"], row["done"]) == ("ana", "edit and retry", "because", 1)
        await shop.send("/actions/shop/1/restore", await shop.form("/actions/shop/1"))
        assert (await shop.client.get(f"/dead/{found.key}/body")).content == before


async def test_an_import_shows_the_difference_of_texts(tmp_path: Path) -> None:
    """As the form does. Others are shown by their size."""
    async with opened(tmp_path, raw(b"a\nb"), audit_views=True) as shop:
        assert "<del>" in (await imported(shop, raw(b"a\nb").key, b"a\nc")).text
        assert [each["action"] for each in (await shop.page("/actions"))["actions"]] == ["open body"]
        text = (await imported(shop, raw(b"a\nb").key, b"\xff")).text
        assert "<del>" not in text
        assert "3 bytes become 1 bytes" in text


@pytest.mark.parametrize(
    ("body", "changes", "problem"),
    [
        (b"{}", {"step": "send"}, "409: This is not the file that was reviewed"),
        (b"{}", {"step": "send", "sha256": "0" * 64}, "409: This is not the file that was reviewed"),
        (b"{}", {"reason": " "}, "400: State a reason"),
        (b"x" * ((1 << 20) + 1), {}, "413: The edited body has 1,048,577 bytes; the limit is 1,048,576"),
    ],
)
async def test_an_import_is_refused(tmp_path: Path, body: bytes, changes: dict[str, str], problem: str) -> None:
    """Each refusal has its row, and nothing is sent. The queue takes no more than 1 MiB."""
    async with opened(tmp_path, raw(b"1")) as shop:
        response = await imported(shop, raw(b"1").key, body, **changes)
        status, _, words = problem.partition(": ")
        assert (response.status_code, words in response.text) == (int(status), True)
        (row,) = (await shop.page("/actions"))["actions"]
        assert (row["state"], row["action"]) == ("refused", "edit and retry")
        assert await shop.queue() == 0


async def test_an_import_that_its_handler_cannot_read_is_not_sent(tmp_path: Path) -> None:
    """Reviewed or not."""
    async with opened(tmp_path, letter()) as shop:
        body = b'{"total": "x"}'
        review = await imported(shop, letter().key, body)
        assert (review.status_code, "could not read it" in review.text) == (400, True)
        digest = sha256(body).hexdigest()
        assert (await imported(shop, letter().key, body, step="send", sha256=digest)).status_code == 409
        assert (await shop.queue(), await shop.states()) == (0, ["refused"])


async def test_an_import_form_is_used_once(tmp_path: Path) -> None:
    """By a user with the roles, of a page of the dashboard."""
    roles = {"ana": ["view", "body", "edit"], "bob": ["view", "edit"], "eve": ["view", "body"]}
    found, files = raw(b"1"), {"file": ("f", b"2", "text/plain")}
    async with opened(tmp_path, found, roles=roles) as shop:
        path = f"/act/import?endpoint=shop&key={found.key}"
        assert (await shop.client.get(path, headers={"x-user": "eve"})).status_code == 403
        refused = await shop.client.get(path, headers={"x-user": "bob", **JSON})
        assert "role body" in refused.json()["why_not"]
        fields = await shop.form(path) | {"step": "send", "sha256": sha256(b"2").hexdigest()}
        for changed in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
            assert (await shop.client.post("/act/import", data=fields, files=files, headers=changed)).status_code == 403
        assert (await shop.client.post("/act/import", data=fields | {"token": "x"}, files=files)).status_code == 403
        assert (await shop.client.post("/act/import", data=fields)).status_code == 415
        assert (await shop.client.post("/act/edit", data=fields, files=files)).status_code == 415
        responses = [await shop.client.post("/act/import", data=fields, files=files) for _ in range(2)]
        assert [each.status_code for each in responses] in ([303, 404], [303, 409])
        assert await shop.queue() == 1
    async with opened(tmp_path, raw(b"3"), read_only=True) as shop:
        assert (await shop.client.get(path)).status_code == 404


async def test_an_import_shows_nothing_that_redact_hides(tmp_path: Path) -> None:
    """It replaces the whole body, and warns."""

    def redact(message: Message) -> Message:
        return msgspec.structs.replace(message, body=b"***")

    async with opened(tmp_path, raw(b"hunter2"), redact=redact, audit_views=True) as shop:
        path = f"/act/import?endpoint=shop&key={raw(b'hunter2').key}"
        pages = [(await shop.client.get(path)).text, (await imported(shop, raw(b"hunter2").key, b"new")).text]
        assert all("hidden by" in page and "hunter2" not in page for page in pages)
        assert (await shop.client.get(f"/dead/{raw(b'hunter2').key}/body?of=message")).content == b"***"


def multipart(*parts: bytes, boundary: bytes = b"b", end: bytes = b"--\r\n") -> bytes:
    """Write the parts of a form as they are."""
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + end


FIELD = b'Content-Disposition: form-data; name="a"\r\n\r\n1'
FILE = b'content-disposition: form-data; name="f"; filename="x"\r\nContent-Type: text/html\r\n\r\n' + TRICKY
NO_FILE = b'Content-Disposition: form-data; name="g"; filename=""\r\n\r\n'


async def read(content: bytes, kind: str = "multipart/form-data; boundary=b") -> Upload:
    """Read a request in two pieces."""
    pieces = [content[: len(content) // 2], content[len(content) // 2 :]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return await read_upload(Headers({"content-type": kind}), receive)


async def test_a_form_with_a_file_is_read_exactly() -> None:
    """Fields and files; a field without a chosen file is left out."""
    found = await read(multipart(FIELD, FILE, FIELD, NO_FILE))
    assert found == ({"a": ["1", "1"]}, {"f": TRICKY})
    quoted = 'multipart/form-data; charset=utf-8; boundary="b c"'
    assert (await read(multipart(FIELD, boundary=b"b c"), quoted)).fields == {"a": ["1"]}


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (multipart(FIELD), "application/x-www-form-urlencoded", 415),
        (multipart(FIELD), "multipart/form-data", 400),
        (multipart(FIELD), "multipart/mixed; boundary=b", 415),
        (b"", "multipart/form-data; boundary=b", 400),
        (b"x" + multipart(FIELD), "multipart/form-data; boundary=b", 400),
        (multipart(b"no head"), "multipart/form-data; boundary=b", 400),
        (multipart(b"Content-Type: a\r\n\r\n1"), "multipart/form-data; boundary=b", 400),
        (multipart(*[FIELD] * (MOST_FIELDS + 1)), "multipart/form-data; boundary=b", 400),
        (multipart(FIELD + b"1" * MOST_FORM_BYTES), "multipart/form-data; boundary=b", 400),
        (multipart(FILE + b"1" * MOST_UPLOAD_BYTES), "multipart/form-data; boundary=b", 413),
    ],
)
async def test_a_form_that_is_wrong_or_large_is_refused(content: bytes, kind: str, status: int) -> None:
    """Before a view sees it."""
    with pytest.raises(Refused) as refused:
        await read(content, kind)
    assert refused.value.status == status
