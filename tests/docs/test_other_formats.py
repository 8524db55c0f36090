"""The formats of the page run: messages of other senders are read, and what is sent has their format."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from onceonly import Context, Endpoint, testing
from tests import ROOT
from tests.docs.test_documentation import snippet

PAGE = ROOT / "docs" / "how-to" / "other-formats.md"
LINES = 25
"""The longest format. It is copied into a program."""
JSON = ("content-type", "application/json")


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a program of the page as a user's module."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(snippet(PAGE, f"# {name}.py\n"), name, "exec"), made.__dict__)  # noqa: S102 - the page's program
    return made


@dataclass
class Bill:
    """A message of both libraries."""

    order: str


def test_formats_are_short() -> None:
    """Blank lines and comments do not count."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    formats = [
        [line for line in program.splitlines() if line and line[0] != "#"] for program in programs if "def read" in program
    ]
    assert [len(lines) <= LINES for lines in formats] == [True, True]


def shop(format_: Any, seen: list[tuple[Bill, str, str]], failures: int = 0) -> Endpoint:
    """Make an endpoint that passes bills on, after its handler failed a few times."""
    made = Endpoint("shop", store="sqlite:///x.db", transport="memory://shop", format=format_)
    left = [failures]

    @made.handler(type="Sales.Bill")
    async def bill(order: Bill, context: Context) -> None:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("not yet")
        seen.append((order, context.message.id, context.message.header("tenant")))
        context.send(Bill(order.order), to="shop", type="Sales.Billed", headers={"tenant": "acme"})

    @made.handler(type="Sales.Billed")
    async def billed(order: Bill, context: Context) -> None:
        seen.append((order, context.message.type, context.message.header("tenant")))

    return made


async def test_messages_of_nservicebus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, retried, and written so that an endpoint reads them."""
    format_ = module("nservicebus", monkeypatch).NServiceBus()
    seen: list[Any] = []
    headers = (
        ("NServiceBus.MessageId", "m-1"),
        ("NServiceBus.EnclosedMessageTypes", "Sales.Bill, Sales, Version=1.0.0.0;Sales.IBill"),
        ("tenant", "acme"),
        JSON,
    )
    async with testing.run(shop(format_, seen, failures=1), raise_failures=False) as t:
        report = await t.deliver_raw(headers, b'\xef\xbb\xbf{"order":"A-1"}', copies=2)
        t.clock.advance(60)
        await t.settle()
        assert (report.retried, report.known, t.dead_letters) == (1, 1, ())
        await t.deliver_raw(headers[1:], b"{}")
        assert [letter.reason for letter in t.dead_letters] == ["cannot be read: the header NServiceBus.MessageId is missing"]
        (sent,) = t.sent
    assert seen == [(Bill("A-1"), "m-1", "acme"), (Bill("A-1"), "Sales.Billed", "acme")]
    assert sent.headers["NServiceBus.EnclosedMessageTypes"] == "Sales.Billed"
    assert sent.headers["NServiceBus.ConversationId"] == "m-1"


def enveloped(order: str, sent: str = "2026-01-01T00:00:00Z") -> bytes:
    """Return a message as MassTransit writes it."""
    envelope = {
        "messageId": "0b8a1c2e-0000-0000-0000-000000000001",
        "messageType": ["urn:message:Sales.Bill", "urn:message:Sales.IBill"],
        "sentTime": sent,
        "headers": {"tenant": "acme", "attempt": 1},
        "message": {"order": order},
    }
    return msgspec.json.encode(envelope)


async def test_messages_of_masstransit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The envelope is not part of the message: copies whose envelopes differ are copies."""
    format_ = module("masstransit", monkeypatch).MassTransit()
    seen: list[Any] = []
    kind = (("content-type", "application/vnd.masstransit+json"),)
    async with testing.run(shop(format_, seen, failures=1), raise_failures=False) as t:
        await t.deliver_raw(kind, enveloped("A-1"))
        t.clock.advance(60)
        await t.settle()
        report = await t.deliver_raw(kind, enveloped("A-1", sent="2027-01-01T00:00:00Z"))
        assert (report.known, report.dead) == (1, 0)
        report = await t.deliver_raw(kind, enveloped("A-2"))
        assert report.dead == 1
        await t.deliver_raw(kind, b'{"messageType":[],"message":{}}')
        reasons = {letter.reason for letter in t.dead_letters}
        (sent,) = t.sent
    guid = "0b8a1c2e-0000-0000-0000-000000000001"
    assert seen == [(Bill("A-1"), guid, "acme"), (Bill("A-1"), "Sales.Billed", "acme")]
    assert any("missing required field `messageId`" in reason for reason in reasons)
    written = msgspec.json.decode(sent.message.body)
    assert (written["messageType"], written["message"]) == (["urn:message:Sales.Billed"], {"order": "A-1"})
    assert (sent.message.datacontenttype, sent.headers) == ("application/vnd.masstransit+json", {})


async def test_plain_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As at the top of the page."""
    monkeypatch.chdir(tmp_path)
    billing = module("billing", monkeypatch)
    async with testing.run(billing.billing) as t:
        headers = (("X-Event-Id", "e-1"), ("x-event-type", "OrderPlaced"), JSON)
        await t.deliver_raw(headers, b'{"order_id":"A-1"}', copies=2)
        (sent,) = t.sent
    assert (sent, sent.headers["x-event-type"]) == (billing.OrderBilled("A-1"), "OrderBilled")
    assert sent.headers["x-event-id"] == sent.message.id
