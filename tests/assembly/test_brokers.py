"""What a broker reports about a queue is logged at the start of its endpoint."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from onceonly.adapters.memory import urls
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.assembly import report_settings, wire
from onceonly.config.location import locate
from onceonly.model.errors import SetupError
from onceonly.ports.transport import BrokerReport
from tests.assembly.test_wiring import handlers, settings
from tests.log_events import event_in

WEAK = BrokerReport(settings=(("storage", "memory"), ("replicas", "1")), warnings=("the queue is in memory",))


class Weak:
    """Reports a queue that a restart of its broker empties."""

    async def check(self) -> BrokerReport:
        """Report it."""
        return WEAK


@contextmanager
def checked(monkeypatch: pytest.MonkeyPatch, result: BrokerReport | SetupError) -> Iterator[None]:
    """Have the memory transport report this: a class of its own does, because `isinstance` remembers what a class had."""

    class Checked(MemoryTransport):
        async def check(self) -> BrokerReport:
            if isinstance(result, SetupError):
                raise result
            return result

    monkeypatch.setattr(urls, "MemoryTransport", Checked)
    yield


async def test_settings_and_warnings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often the endpoint starts in this process."""
    caplog.set_level(logging.INFO)
    place = locate(f"memory://{uuid4().hex}", "transport")
    for _ in range(2):
        await report_settings(Weak(), "shop", place)  # type: ignore[arg-type] # only what is checked
    assert [(record.levelno, event_in(record)) for record in caplog.records] == [
        (logging.INFO, "queue settings"),
        (logging.WARNING, "queue warning"),
    ]
    assert vars(caplog.records[0])["settings"] == "storage memory, replicas 1"
    assert vars(caplog.records[1])["reason"] == "the queue is in memory"


async def test_an_endpoint_checks_its_queue_at_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The check follows the declaration, so that there is a queue to check."""
    name = uuid4().hex
    with checked(monkeypatch, WEAK):
        async with wire(settings(transport=f"memory://{name}"), handlers, events=["e"]):
            pass
    assert "queue warning" in [event_in(record) for record in caplog.records]


async def test_a_queue_that_breaks_a_promise_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the transport."""
    with checked(monkeypatch, SetupError("the queue drops messages")), pytest.raises(SetupError, match="the queue drops"):
        async with wire(settings(transport=f"memory://{uuid4().hex}"), handlers, events=["e"]):
            pass
