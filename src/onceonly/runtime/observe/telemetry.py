"""What an endpoint needs of its `telemetry=`: an observer of its port calls, a hook for new messages, and spans for tasks.

This module imports nothing of any telemetry library.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onceonly.model.message import Headers, Message
from onceonly.runtime.observe.observer import Observer, Observers

if TYPE_CHECKING:
    from onceonly.runtime.metrics.series import Row


class TelemetrySubject(NamedTuple):
    """The endpoint that is observed.

    * `scheme`, `transport`: the scheme of its transport's URL, and the URL.
    * `deduplication`: how copies are recognized: "history", "dedup_store", "tokens" or "off".
    """

    endpoint: str
    scheme: str
    transport: str
    deduplication: str


class NewMessage(NamedTuple):
    """A message that a handler or a transaction has made. `to` is empty for an event, `cause` are its other attributes.

    `in_batch` is the message that a batch handler answers with it. None where the current span belongs to what made it.
    """

    type: str
    to: str
    id: str
    cause: Headers
    body_bytes: int
    in_batch: Message | None = None


class CreationHook(Protocol):
    def created(self, message: NewMessage) -> Headers:
        """Return the extension attributes that carry the trace of a new message. Empty to leave those of its cause."""


class TaskSpans(Protocol):
    def task(self, name: str, *, count: int = 0) -> AbstractContextManager[object]:
        """Return what encloses one run of a task: "relay", or one of maintenance. `count` is the number of records."""


class GaugeSink(Protocol):
    """What is shown the gauges of endpoints, such as the depth of a queue."""

    every: float
    """Seconds between two reads."""

    def show(self, endpoint: str, values: Mapping["Row", float]) -> None:
        """Take the place of what was shown for this endpoint. It must not raise."""


class Instruments(CreationHook, TaskSpans, Protocol):
    """The telemetry of one endpoint in one process. `gauges` is None if they are not to be read."""

    observer: Observer
    gauges: GaugeSink | None


class Telemetry(Protocol):
    """The setting `telemetry=` of an endpoint."""

    def instrument(self, subject: TelemetrySubject) -> Instruments:
        """Return the telemetry of one endpoint. Called once in a process, before the endpoint opens."""


class NoTaskSpans:
    def task(self, name: str, *, count: int = 0) -> AbstractContextManager[object]:
        return _NOTHING


NO_TASK_SPANS: TaskSpans = NoTaskSpans()
_NOTHING = nullcontext()


def with_telemetry(instruments: Instruments | None, observer: Observer | None) -> Observer | None:
    """Return an observer that is both. That of telemetry is outermost, so that logs have the ids of its spans."""
    if instruments is None:
        return observer
    return instruments.observer if observer is None else Observers(instruments.observer, observer)
