"""The guide for Sentry: a dead letter of a worker process becomes one issue with the tags and the group of the guide."""

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests import ROOT
from tests.docs.test_documentation import run_shell, snippet

PAGE = ROOT / "docs" / "how-to" / "sentry.md"
SHOP = """
import sentry_sdk
import reports
from onceonly import Context, Reject
from onceonly.types import CallNext
"""
HANDLER = """

@shop.handler(type="Refuse")
async def refuse(order: dict) -> None:
    raise Reject("sold out")
"""


class Sentry:
    """An HTTP server that takes what the SDK sends."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests with builder, and answer each."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                body = await reader.readexactly(length)
                self._read(gzip.decompress(body) if "content-encoding: gzip" in head else body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}")
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    def _read(self, envelope: bytes) -> None:
        lines = envelope.split(b"\n")
        self.events += [
            json.loads(body)
            for header, body in zip(lines[1::2], lines[2::2], strict=False)
            if json.loads(header or b"{}").get("type") == "event"
        ]


@pytest.mark.slow
@pytest.mark.parametrize("reports_exceptions", [False, True])
async def test_a_dead_letter_becomes_an_issue(tmp_path: Path, *, reports_exceptions: bool) -> None:
    """And its exception another one, with the middleware of the guide."""
    pytest.importorskip("sentry_sdk", reason="needs the SDK of Sentry")
    sentry = Sentry()
    server = await asyncio.start_server(sentry.take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    middleware = snippet(PAGE, "@shop.middleware") if reports_exceptions else ""
    (tmp_path / "reports.py").write_text(snippet(PAGE, "# reports.py"))
    (tmp_path / "shop.py").write_text(snippet(ROOT / "README.md", "# shop.py") + SHOP + HANDLER + middleware)
    commands = """echo '{"order_id": "A-1"}' > orders.jsonl
onceonly send orders.jsonl --to shop:shop --type Refuse --id-from order_id
onceonly run shop:shop --drain"""
    async with server:
        with patch.dict(os.environ, {"SENTRY_DSN": f"http://key@127.0.0.1:{port}/1"}):
            await asyncio.to_thread(run_shell, tmp_path, commands)
    (given_up,) = [each for each in sentry.events if "logentry" in each]
    assert given_up["extra"]["event"] == "message given up, stored as a dead letter"
    assert given_up["fingerprint"] == ["onceonly", "shop", "Refuse", "shop.refuse"]
    assert given_up["tags"] == {"endpoint": "shop", "message_type": "Refuse"}
    assert "sold out" in given_up["extra"]["reason"]
    raised = [each["exception"]["values"][-1]["type"] for each in sentry.events if "exception" in each]
    assert raised == (["Reject"] if reports_exceptions else [])
