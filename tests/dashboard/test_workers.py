"""Processes of stores that do not know them: read from the addresses of `onceonly run --health`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from onceonly import SetupError
from onceonly.model.errors import DriverMissing
from onceonly.model.health import EndpointHealth, HealthAssessment, ProcessHealth, Pulse, Trouble
from onceonly.model.health import Level as Health
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.observe.http import HealthReply, TextBody, serving
from onceonly.systems.urls import Address
from onceonly_conformance.clock import ManualClock
from onceonly_dashboard import dashboard, loopback_only
from onceonly_dashboard import workers as workers_module
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.probes import Sampler
from onceonly_dashboard.state import EndpointLevel, findings_of
from onceonly_dashboard.workers import WorkerAddress, check_workers
from tests.dashboard.serving import NOW, endpoint, sampled
from tests.dashboard.test_gate import open_client
from tests.dashboard.test_reading import SteppedTimer
from tests.servers.available import free_port

JSON = {"accept": "application/json"}
AWAY = Trouble(part="transport", reason="<i>refused</i>", since=NOW)


def pulse(pid: int, **changes: Any) -> Pulse:
    """Return the pulse of a process that runs."""
    return Pulse(**{"process": 0, "pid": pid, "runs": True, **changes})


READY = HealthAssessment(
    status=Health.DEGRADED,
    reasons=(),
    processes=(
        ProcessHealth(pulse=pulse(11), endpoints=(EndpointHealth(endpoint="shop", works=True),)),
        ProcessHealth(pulse=pulse(12), endpoints=(EndpointHealth(endpoint="shop", works=True, troubles=(AWAY,)),)),
        ProcessHealth(pulse=pulse(13), endpoints=(EndpointHealth(endpoint="shop"),)),
        ProcessHealth(pulse=pulse(14, silent=60.0), endpoints=(EndpointHealth(endpoint="shop", works=True),)),
        ProcessHealth(pulse=pulse(15, runs=False), endpoints=(EndpointHealth(endpoint="shop", works=True),)),
        ProcessHealth(pulse=pulse(16), endpoints=(EndpointHealth(endpoint="billing", works=True),)),
    ),
)


@asynccontextmanager
async def answering(body: object, status: HTTPStatus = HTTPStatus.OK, port: int = 0) -> AsyncIterator[str]:
    """Answer `/ready` with this, as `onceonly run --health` does; gives the URL."""
    async with serving(Address("127.0.0.1", port), {"/ready": lambda: HealthReply(status, body)}) as address:
        yield f"http://{address}"


@pytest.mark.parametrize("status", [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE])
async def test_the_pages_show_the_processes_that_an_address_reports(status: HTTPStatus) -> None:
    """Those that run, of this endpoint. What they count is unknown, and not 0."""
    async with answering(READY, status) as url:
        shop = endpoint("shop")
        app = dashboard(shop, auth=loopback_only(), workers=[url])
        async with shop.opened(), open_client(app) as client:
            await client.get("/")
            await sampled(app)
            (address,) = app.services.endpoints["shop"].workers  # type: ignore[attr-defined]
            await address.probe.wait_for(1)
            shown = (await client.get("/e/shop", headers=JSON)).json()
            page = (await client.get("/e/shop")).text
    assert [(each["process"], each["troubles"]) for each in shown["processes"]] == [
        ("127.0.0.1:11", []),
        ("127.0.0.1:12", ["transport: <i>refused</i>"]),
        ("127.0.0.1:13", ["it has not connected to its servers yet"]),
        ("127.0.0.1:14", ["its event loop has been blocked for 60 s"]),
    ]
    assert "transport: &lt;i&gt;refused&lt;/i&gt;" in page
    assert 'data-label="handled">-</td>' in page
    assert {each["reason"] for each in shown["endpoint"]["findings"]} >= {"transport: <i>refused</i>"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (TextBody("text/plain", b"hello"), "is not that of `onceonly run --health`"),
        (TextBody("text/plain", b"\xff\xfe"), "is not that of `onceonly run --health`"),
        (["a list"], "is not that of `onceonly run --health`"),
        (TextBody("application/json", b'"' + b"a" * 1_000_001 + b'"'), "more than 1,000,000 bytes"),
        (TextBody("application/json", json.dumps({"processes": [[]] * 5}).encode()), "is not that of"),
    ],
)
async def test_another_answer_is_an_outage_of_the_address(body: object, reason: str) -> None:
    """It never breaks the page."""
    async with answering(body) as url:
        address = await read_once(url)
    assert address.probe.outage is not None
    assert reason in address.probe.outage.reason


async def test_an_address_that_does_not_answer_is_named_and_recovers() -> None:
    """The finding says which, and since when. Then the processes are shown again."""
    port = free_port()
    timer = SteppedTimer()
    address = WorkerAddress(f"http://127.0.0.1:{port}", Environment(ManualClock(NOW), LIVE.random, LIVE.ids, timer))
    probes = EndpointProbes(endpoint("shop"), LIVE, [address])
    async with probes.endpoint.opened(), Sampler([*probes.all_probes, address.probe]).running(NOW):
        await probes.store.wait_for(1)
        await address.probe.wait_for(1)
        (finding,) = [each for each in findings_of(probes, NOW) if each.part == "processes"]
        assert finding.level is EndpointLevel.DEGRADED
        assert f"http://127.0.0.1:{port} does not answer" in finding.reason
        assert (finding.since, probes.processes) == (NOW, None)
        async with answering(READY, port=port):
            timer.allow()
            await address.probe.wait_for(2)
        assert address.probe.outage is None
        assert [process.report.pid for process in probes.processes or ()] == [11, 12, 13, 14]


async def read_once(url: str) -> WorkerAddress:
    """Read an address once."""
    address = WorkerAddress(url, Environment(ManualClock(NOW), LIVE.random, LIVE.ids, SteppedTimer()))
    async with Sampler([address.probe]).running(NOW):
        await address.probe.wait_for(1)
    return address


@pytest.mark.parametrize(
    "workers",
    [
        ["ftp://web:8080"],
        ["http://web:8080/ready"],
        ["http://user:secret@web:8080"],
        ["http://web:8080?a=b"],
        ["http://web/%2e"],
        ["javascript:alert(1)"],
        ["//web:8080"],
        ["http://we'b\\:8080"],
        [8080],
        "http://web:8080",
        {"http://web:8080"},
    ],
)
def test_only_addresses_are_accepted(workers: Any) -> None:
    """A scheme, a host and a port: what is asked there is fixed."""
    with pytest.raises(SetupError, match="workers"):
        dashboard(endpoint("shop"), auth=loopback_only(), workers=workers)


def test_addresses_are_asked_once() -> None:
    """Also if they are named twice."""
    assert check_workers(["http://web:8080/", "http://web:8080", "https://[::1]"]) == ("http://web:8080", "https://[::1]")


def test_the_client_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the error names what to install."""
    monkeypatch.setattr(workers_module, "find_spec", lambda _: None)
    assert check_workers([]) == ()
    with pytest.raises(DriverMissing, match=r"pip install 'onceonly\[http\]'"):
        check_workers(["http://web:8080"])
