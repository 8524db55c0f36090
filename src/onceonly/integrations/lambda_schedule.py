"""Functions of AWS Lambda for a schedule: what a relay and a janitor do, within the time of one invocation."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypedDict

from onceonly.assembly import open_relay, require_records
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import instruments_of
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.lambda_process import PROCESS, Deadline
from onceonly.model.errors import RetryableError, SetupError
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.observe.telemetry import with_telemetry
from onceonly.runtime.relay.once import RelayReport, relay_once

MOST_SECONDS = 60.0
"""Seconds of an invocation without a limit."""
_log = EventLogger(logging.getLogger("onceonly.lambda"))


class MaintenanceAnswer(TypedDict):
    """What a maintenance function has done, and what is left of it; see `MaintenanceReport`."""

    tasks: dict[str, int]
    troubles: list[str]


class RelayAnswer(MaintenanceAnswer):
    """What a relay function has done. `sent` and `left` are records with unsent messages, `left` at most 1000.

    `reason` is why some are left. `not_searched` is why the store was not searched. Both are empty otherwise.
    """

    sent: int
    left: int
    reason: str
    not_searched: str


RelayHandler: TypeAlias = Callable[[Mapping[str, Any], Any], RelayAnswer]
"""A handler of Lambda that sends what is left over. Its event is not read."""
MaintenanceHandler: TypeAlias = Callable[[Mapping[str, Any], Any], MaintenanceAnswer]
"""A handler of Lambda that maintains the store. Its event is not read."""


def relay_handler(endpoint: Endpoint, *, margin: float) -> RelayHandler:
    async def work(deadline: Deadline) -> RelayAnswer:
        reason, report = "", RelayReport()
        try:
            require_records(endpoint.settings)
        except SetupError as error:
            reason = str(error)
            _log.warning("relay function searches nothing", extra={"endpoint": endpoint.name, "reason": reason})
        else:
            report = await _relay(endpoint, deadline)
        maintained = MaintenanceAnswer(tasks={}, troubles=[])
        if endpoint.settings.janitor:
            maintained = await _maintain(endpoint, deadline)
        return RelayAnswer(sent=report.sent, left=report.left, reason=report.reason, not_searched=reason, **maintained)

    def handler(_event: Mapping[str, Any], context: Any) -> RelayAnswer:
        deadline = Deadline(context, margin)
        return PROCESS.run(lambda: work(deadline), deadline)

    return handler


def maintenance_handler(endpoint: Endpoint, *, margin: float) -> MaintenanceHandler:
    def handler(_event: Mapping[str, Any], context: Any) -> MaintenanceAnswer:
        deadline = Deadline(context, margin)
        return PROCESS.run(lambda: _maintain(endpoint, deadline), deadline)

    return handler


async def _relay(endpoint: Endpoint, deadline: Deadline) -> RelayReport:
    settings = endpoint.settings
    seconds = _seconds(deadline) / 2  # the other half is for maintenance, and for what is begun
    observer = None if settings.telemetry is None else with_telemetry(instruments_of(settings), None)
    limit = asyncio.timeout(_seconds(deadline))
    try:
        async with limit, open_relay(settings, observer=observer) as ports:
            searched = ports.for_relay()
            if searched is None:
                return RelayReport()
            return await relay_once(by_relay(searched), after=settings.relay_after, seconds=seconds)
    except TimeoutError as error:
        if not limit.expired():
            raise
        text = f"the relay of endpoint {endpoint.name!r} was not done before the time of the invocation was over"
        raise RetryableError(f"{text}: check that store and transport can be reached from the function") from error


async def _maintain(endpoint: Endpoint, deadline: Deadline) -> MaintenanceAnswer:
    seconds = _seconds(deadline)
    if seconds <= 0:
        return MaintenanceAnswer(tasks={}, troubles=["its time was over before it began"])
    report = await endpoint.maintain(remaining=seconds)
    return MaintenanceAnswer(tasks=dict(report.tasks), troubles=list(report.troubles))


def _seconds(deadline: Deadline) -> float:
    return MOST_SECONDS if deadline.remaining is None else deadline.remaining
