"""Processes whose store does not know them: read from the addresses at which `onceonly run --health` answers."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import CommitFailed, DriverMissing, SetupError
from onceonly.model.health import REPORT_SECONDS, EndpointHealth, HealthAssessment, ProcessHealth, ProcessReport, ProcessState
from onceonly.runtime.environment import Environment
from onceonly_dashboard.probes import ANSWER_SECONDS, Probe

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 1_000_000
"""Bytes of an answer that are read."""
_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?/?")

Processes = Mapping[str, Sequence[ProcessReport]]
"""The processes that one address reports, by endpoint."""
WorkersProbe = Probe["httpx.AsyncClient", Processes]


def check_workers(workers: Any) -> tuple[str, ...]:
    """Check `workers=`: URLs of a scheme, a host and a port. Raises SetupError, DriverMissing."""
    if isinstance(workers, str) or not isinstance(workers, Sequence):
        raise SetupError(f'workers must be a list of URLs, such as ["http://10.0.0.5:8080"], not {workers!r:.80}')
    for each in workers:
        if not isinstance(each, str) or not _ADDRESS.fullmatch(each):
            given = repr(each)[:80] if "@" not in str(each) else "a URL with a user or a password"
            raise SetupError(f"workers: {given} is not an address such as http://10.0.0.5:8080, without path and password")
    if workers and find_spec("httpx") is None:
        raise DriverMissing("workers= needs httpx, which is not installed. Run: pip install 'onceonly[http]'")
    return tuple(dict.fromkeys(each.rstrip("/") for each in workers))


class WorkerAddress:
    """One address, and what it reported last."""

    def __init__(self, url: str, environment: Environment) -> None:
        """Read the `/ready` of this URL every 10 seconds."""
        self.url = url
        self._host = urlsplit(url).hostname or ""
        self._clock = environment.clock
        self.probe: WorkersProbe = Probe(self._open, self._read, period=REPORT_SECONDS, environment=environment)

    def processes(self, endpoint: str) -> list[ProcessState]:
        """Return the processes of an endpoint, with the age of what was read."""
        if self.probe.value is None:
            return []
        age = max(0, self._clock.now() - self.probe.at) / 1000
        return [ProcessState(report=report, age=age) for report in self.probe.value.get(endpoint, ())]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator["httpx.AsyncClient"]:
        import httpx  # noqa: PLC0415 - an extra

        # no redirects and no proxies of the environment: the settings name the address
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as client:
            yield client

    async def _read(self, client: "httpx.AsyncClient") -> Processes:
        import httpx  # noqa: PLC0415 - an extra

        try:
            async with client.stream("GET", f"{self.url}/ready") as answer:
                body = bytearray()
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise CommitFailed(f"{self.url}/ready answers more than {MOST_BYTES:,} bytes")
        except httpx.HTTPError as error:
            raise CommitFailed(f"{self.url} does not answer: {str(error) or type(error).__name__}") from error
        try:
            assessed = msgspec.json.decode(bytes(body), type=HealthAssessment)
        except UNDECODABLE as error:
            raise CommitFailed(f"{self.url}/ready is not that of `onceonly run --health`: {error}") from error
        found: dict[str, list[ProcessReport]] = {}
        for process in assessed.processes:
            for health in process.endpoints if process.pulse.runs else ():
                found.setdefault(health.endpoint, []).append(self._report(process, health))
        return found

    def _report(self, process: ProcessHealth, health: EndpointHealth) -> ProcessReport:
        pulse = process.pulse
        troubles = [f"{trouble.part}: {trouble.reason}" for trouble in health.troubles]
        if pulse.silent > REPORT_SECONDS:
            troubles.append(f"its event loop has been blocked for {pulse.silent:.0f} s")
        elif not health.works and not troubles:
            troubles.append("it has not connected to its servers yet")
        name = f"{self._host}:{pulse.pid}"
        return ProcessReport(process=name, host=self._host, pid=pulse.pid, version="", troubles=tuple(troubles))
