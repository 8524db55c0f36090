"""A worker inside another application logs as `onceonly run` does."""

import asyncio
import logging
from dataclasses import dataclass
from uuid import uuid4

import pytest

from onceonly import Endpoint, Retry
from tests.log_events import event_in


@dataclass
class Go:
    """Its handler fails."""


async def test_an_embedded_worker_logs_why_a_message_fails(caplog: pytest.LogCaptureFixture) -> None:
    """With the handler, and the traceback in the text, whatever formatter the application has."""
    place = f"memory://{uuid4().hex}"
    shop = Endpoint("shop", store=place, transport=place, retry=Retry(immediate=1, delayed=0))

    @shop.handler
    async def go(_message: Go) -> None:
        raise ValueError("out of stock")

    async with shop.running():
        async with shop.transaction() as tx:
            tx.send(Go(), to="shop")
        while sum(event_in(record).startswith("message ") for record in caplog.records) < 2:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
    first, second = (record for record in caplog.records if record.name == "onceonly")
    assert [event_in(record) for record in (first, second)] == [
        "message failed, will be retried",
        "message given up, stored as a dead letter",
    ]
    text = logging.Formatter(logging.BASIC_FORMAT).format(first)
    assert f" handler={__name__}.test_an_embedded_worker_logs_why_a_message_fails.go attempt=1 " in text
    assert 'reason="ValueError: out of stock"' in text
    assert text.endswith("\nValueError: out of stock")
