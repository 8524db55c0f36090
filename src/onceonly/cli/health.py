"""`/live` and `/ready`: what the parent of all processes answers about them, at one address, with `/metrics`."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.model.health import EndpointHealth, HangLimits, HealthAssessment, Level, ProcessHealth, Pulse, liveness, readiness
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.health_state import read_health
from onceonly.runtime.observe.http import HealthReply, Pages, serving
from onceonly.systems.urls import Address, parse_address

Pulses: TypeAlias = Callable[[], Sequence[Pulse]]
"""Returns for each process whether it runs."""
VitalsOf: TypeAlias = Callable[[int], Sequence[EndpointHealth]]
"""Returns how a process, by its number, finds its endpoints."""

_log = EventLogger(logging.getLogger("onceonly"))


class HealthSource:
    """Knows how all processes are; `stopping` shows whether they are being stopped."""

    def __init__(
        self,
        endpoints: Sequence[str],
        pulses: Pulses,
        health_observer: VitalsOf,
        *,
        patience: float = 1.0,
        progress: float = inf,
    ) -> None:
        """Answer for these endpoints.

        A process whose loop does not turn for `patience` seconds hangs, and one that holds messages and makes no progress
        for `progress` seconds.
        """
        self._endpoints = endpoints
        self._pulses = pulses
        self._health_observer = health_observer
        self._patience = HangLimits(silent=patience, still=progress)
        self.stopping: Callable[[], bool] = bool

    def live(self) -> HealthReply:
        """Return whether any process is alive: they may all be starting."""
        return _reply(liveness(self._pulses(), self._patience))

    def ready(self) -> HealthReply:
        """Return whether messages of all endpoints are handled."""
        if self.stopping():
            return _reply(HealthAssessment(status=Level.FAILING, reasons=("the processes are being stopped",)))
        processes = [
            ProcessHealth(pulse=pulse, endpoints=() if pulse.starts else tuple(self._health_observer(pulse.process)))
            for pulse in self._pulses()
        ]
        if not processes:
            return _reply(HealthAssessment(status=Level.FAILING, reasons=("no process has been started yet: see the log",)))
        return _reply(readiness(processes, self._endpoints, patience=self._patience, now=LIVE.clock.now()))

    @asynccontextmanager
    async def open(self, address: Address | None, more: Pages = MappingProxyType({})) -> AsyncIterator[None]:
        """Answer at this address, with `more` pages, and log which it is; nowhere without one. Raises SetupError."""
        if address is None:
            yield
            return
        async with serving(address, {"/live": self.live, "/ready": self.ready, **more}) as listening:
            _log.info("health server listening", extra={"address": str(listening)})
            yield


def vitals_in(folder: Path) -> VitalsOf:
    return lambda process: read_health(health_path(folder, process))


def health_path(folder: Path, process: int) -> Path:
    """Name the file in which a process leaves how it finds its endpoints."""
    return folder / f"vitals-{process}"


def address_of(option: str | None, loaded: Sequence[tuple[Endpoint, Settings]]) -> Address | None:
    """Return the one address to answer at: that of the command line, else that of the endpoints. Raises SetupError."""
    said = {option} if option is not None else {settings.health for _, settings in loaded if settings.health is not None}
    if len(said) > 1:
        raise SetupError(
            f"these endpoints have different addresses for health ({', '.join(sorted(said))}), and run in one command: "
            "give one with --health"
        )
    try:
        return parse_address(said.pop()) if said else None
    except ValueError as error:
        raise SetupError(f"--health: {error}") from error


def _reply(assessment: HealthAssessment) -> HealthReply:
    return HealthReply(HTTPStatus.SERVICE_UNAVAILABLE if assessment.status is Level.FAILING else HTTPStatus.OK, assessment)
