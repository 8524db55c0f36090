"""What viewers share: places that stay open, results of reads, and readers. Their number does not depend on that of tabs."""

import asyncio
import gc
import heapq
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onceonly import CommitFailed, Endpoint
from onceonly.runtime.environment import LIVE, Environment
from onceonly_conformance.clock import ManualClock
from onceonly_dashboard import loopback_only
from onceonly_dashboard.access import EVERYONE, ROLES
from onceonly_dashboard.app import Dashboard
from onceonly_dashboard.cache import RESULTS, KeptOpen, SharedResults
from onceonly_dashboard.gate import AccessSettings, FormTokens
from onceonly_dashboard.page_request import REFRESH
from onceonly_dashboard.probes import SAMPLES, Probe, Sampler
from tests.dashboard.serving import NOW, endpoint, letter, sampled, store
from tests.dashboard.test_gate import open_client
from tests.dashboard.test_reading import Place, SteppedTimer
from tests.servers.available import MEASURED
from tests.sql.statement_work import sent_statements


class Door:
    """Something that is opened and closed, and can fail to open."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.trouble: Exception | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Count."""
        if self.trouble is not None:
            raise self.trouble
        self.opened += 1
        try:
            yield f"opened {self.opened}"
        finally:
            self.closed += 1


async def test_requests_share_what_is_open() -> None:
    """The first opens it, at the same time or later; closing closes it."""
    door = Door()
    kept = KeptOpen(door.open)
    async with kept.reading() as first, kept.reading() as second:
        assert (first, second) == ("opened 1", "opened 1")
    async with kept.reading() as third:
        assert third == "opened 1"
    assert door.closed == 0
    await kept.close()
    assert (door.opened, door.closed) == (1, 1)
    async with kept.reading() as fourth:
        assert fourth == "opened 2"
    await kept.close()


async def test_an_unused_place_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute, here at once."""
    monkeypatch.setattr("onceonly_dashboard.cache.IDLE_SECONDS", 0.0)
    door = Door()
    kept = KeptOpen(door.open)
    async with kept.reading():
        pass
    while not door.closed:  # noqa: ASYNC110 - a few rounds of the event loop
        await asyncio.sleep(0)
    async with kept.reading() as again:
        assert again == "opened 2"
    await kept.close()


async def test_after_an_error_it_is_opened_again() -> None:
    """A request that still reads ends first: it keeps what it has."""
    door = Door()
    kept = KeptOpen(door.open)
    async with kept.reading():
        with pytest.raises(CommitFailed):
            async with kept.reading():
                raise CommitFailed("connection lost")
        async with kept.reading() as fresh:
            assert fresh == "opened 2"
        assert door.closed == 0
    await kept.close()
    while door.closed < 2:  # noqa: ASYNC110 - a few rounds of the event loop
        await asyncio.sleep(0)


async def test_what_cannot_be_opened_is_tried_again() -> None:
    """All that wait get the error; the next request tries again."""
    door = Door()
    door.trouble = CommitFailed("refused")
    kept = KeptOpen(door.open)
    for _ in range(2):
        with pytest.raises(CommitFailed, match="refused"):
            async with kept.reading():
                pass
    door.trouble = None
    async with kept.reading() as opened:
        assert opened == "opened 1"
    await kept.close()


class Reads:
    """Counts reads, which take some seconds of a stepped timer."""

    def __init__(self) -> None:
        self.timer = SteppedTimer()
        self.results = SharedResults(self.timer)
        self.count = 0
        self.took = 0.0
        self.trouble: Exception | None = None

    async def read(self) -> int:
        """Read."""
        self.count += 1
        self.timer.now += self.took
        if self.trouble is not None:
            raise self.trouble
        return self.count

    async def get(self, key: object = "page", *, refreshing: bool = True) -> int:
        """Ask for a page of 10 seconds."""
        return await self.results.get(key, self.read, period=10.0, refreshing=refreshing)


async def test_a_refresh_gets_the_result_of_its_period() -> None:
    """A page that a person opens is read, and the refreshes of others get that as well."""
    reads = Reads()
    assert await asyncio.gather(*(reads.get() for _ in range(50))) == [1] * 50
    reads.timer.now = 8.9
    assert await reads.get() == 1
    assert await reads.get(refreshing=False) == 2
    reads.timer.now = 17.0
    assert await reads.get() == 2
    reads.timer.now = 18.0
    assert await reads.get() == 3


async def test_a_slow_result_is_shared_for_longer() -> None:
    """Twice as long for each slow read, up to a minute; a fast one halves that."""
    reads = Reads()
    reads.took = 0.3
    periods = []
    for _ in range(4):
        await reads.get()
        before, began = reads.count, reads.timer.now
        while await reads.get() == before:
            reads.timer.now += 1.0
        periods.append(round(reads.timer.now - began))
    assert periods == pytest.approx([18, 36, 54, 54], abs=1)
    reads.took = 0.0
    reads.timer.now += 60.0
    fast = await reads.get()
    reads.timer.now += 26.9
    assert await reads.get() == fast
    reads.timer.now += 0.2
    assert await reads.get() == fast + 1


async def test_an_error_is_not_shared() -> None:
    """It is raised, and the next request reads."""
    reads = Reads()
    reads.trouble = CommitFailed("away")
    for _ in range(2):
        with pytest.raises(CommitFailed):
            await reads.get()
    reads.trouble = None
    assert await reads.get() == 3


async def test_the_number_of_results_is_bounded() -> None:
    """The one that was unused for longest is dropped."""
    reads = Reads()
    for number in range(RESULTS + 1):
        await reads.get(number)
    assert await reads.get(1) == 2
    assert await reads.get(0) == RESULTS + 2


async def test_a_place_that_does_not_answer_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read that is given up doubles the period, up to a minute: a server that is too slow is not slowed down more."""
    monkeypatch.setattr("onceonly_dashboard.probes.ANSWER_SECONDS", 0.01)
    place = Place(SteppedTimer())

    async def never(_place: Place) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    environment = Environment(LIVE.clock, LIVE.random, LIVE.ids, place.timer)
    probe: Probe[Place, int] = Probe(place.open, never, numbers=lambda _: {}, period=5.0, environment=environment)
    monkeypatch.setattr("onceonly_dashboard.probes.SLOW_SECONDS", 0.001)
    async with Sampler([probe]).running(NOW):
        for rounds in range(1, 6):
            await probe.wait_for(rounds)
            place.timer.allow()
        await probe.wait_for(6)
    assert place.timer.rests[:5] == [10, 20, 40, 60, 60]


async def test_the_page_keeps_the_last_value_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a read is given up: the number, how old it is, and what is the matter."""
    clock, timer = ManualClock(NOW), SteppedTimer()
    shop = endpoint()
    async with shop.opened():
        await store(shop, [letter(number=number) for number in range(3)])
        app = dashboard_of(shop, Environment(clock, LIVE.random, LIVE.ids, timer))
        async with open_client(app) as client:
            await client.get("/")
            await sampled(app)
            monkeypatch.setattr("onceonly_dashboard.probes.ANSWER_SECONDS", 0.01)
            probe = app.services.endpoints["shop"].letters
            monkeypatch.setattr(probe, "_read", lambda _: asyncio.Event().wait())
            clock.advance(42_000)
            while probe.rounds < 2:
                timer.allow()
                await asyncio.sleep(0.001)
            page = (await client.get("/")).text
            cell = (await client.get("/", headers={"accept": "application/json"})).json()["endpoints"][0]["dead"]
    assert (cell["value"], cell["stale"]) == (3, 42)
    assert "42 s old" in page
    assert "no answer within 0.01 s" in page


def dashboard_of(shop: Endpoint, environment: Environment) -> Dashboard:
    """Make a dashboard whose time a test moves."""
    access = AccessSettings(loopback_only(), {EVERYONE: frozenset(ROLES)}, frozenset({"localhost"}), read_only=False)
    return Dashboard([shop], access, FormTokens(None), environment=environment)


class SimulatedTimer:
    """Seconds that pass only when nothing is left to do at the present one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = iter(range(1 << 40))
        self._changed = asyncio.Event()

    def seconds(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time has come."""
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), waking))
        self._changed.set()
        await waking

    async def asleep(self, count: int) -> None:
        """Wait until this number of tasks sleeps."""
        while len(self._sleepers) < count:
            self._changed.clear()
            await self._changed.wait()

    @property
    def next(self) -> float:
        """When the first of them wakes up."""
        return self._sleepers[0][0]

    def wake(self) -> None:
        """Wake the first one."""
        self.now, _, waking = heapq.heappop(self._sleepers)
        waking.set_result(None)


PERIODS = {"/": 5, "/e/shop": 5, "/dead": 15, "/pending": 10, "/claims": 60}
"""The pages that refresh themselves, and after how many seconds."""


class Tabs:
    """Tabs that are open at a dashboard, in simulated time."""

    def __init__(self, app: Dashboard, timer: SimulatedTimer, clock: ManualClock) -> None:
        self.app, self.timer, self.clock = app, timer, clock
        self.requests = 0

    async def get(self, path: str, *, refresh: bool) -> None:
        """Ask for a page, as a browser does."""
        headers = [(b"host", b"localhost"), *([(REFRESH.encode(), b"1")] if refresh else [])]
        where = {"path": path, "root_path": "", "query_string": b"", "headers": headers}
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            **where,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        status: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        await self.app(scope, receive, send)
        assert status == [200]
        self.requests += 1

    async def stay(self, each: int, seconds: float) -> int:
        """Let `each` tabs of every page be open for some time. Return the number of statements after their opening."""
        tabs: list[tuple[float, int, str]] = []
        for path, period in PERIODS.items():
            for number in range(each):
                await self.get(path, refresh=False)
                tabs.append((self.timer.now + period * (number + 1) / each, len(tabs), path))
        heapq.heapify(tabs)
        end = self.timer.now + seconds
        with sent_statements() as sent:
            while min(self.timer.next, tabs[0][0]) < end:
                if self.timer.next <= tabs[0][0]:
                    self.timer.wake()
                    await self.timer.asleep(4)
                else:
                    due, number, path = heapq.heappop(tabs)
                    self.timer.now = due
                    self._set_clock()
                    await self.get(path, refresh=True)
                    heapq.heappush(tabs, (due + PERIODS[path], number, path))
                self._set_clock()
        self.timer.now = end
        return len(sent)

    def _set_clock(self) -> None:
        self.clock.advance(NOW + round(self.timer.now * 1000) - self.clock.now())


@asynccontextmanager
async def opened_tabs(**places: str) -> AsyncIterator[Tabs]:
    """Open a dashboard of an endpoint with some dead letters."""
    clock, timer = ManualClock(NOW), SimulatedTimer()
    shop = endpoint(**places)
    app = dashboard_of(shop, Environment(clock, LIVE.random, LIVE.ids, timer))
    async with shop.opened(), open_client(app) as client:
        await store(shop, [letter(number=number) for number in range(200)])
        await client.get("/")
        await timer.asleep(4)  # three probes, and what continues actions
        yield Tabs(app, timer, clock)


def memory() -> int:
    """Return the bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_fifty_tabs_read_as_much_as_five(tmp_path: Path) -> None:
    """Ten tabs of each page send as many statements as one of each: at most a tenth more, since they come a little earlier."""
    url = f"sqlite:///{tmp_path}/shop.db"
    async with opened_tabs(store=url, transport=url) as tabs:
        one = await tabs.stay(1, 1200)
        ten = await tabs.stay(10, 1200)
    assert one > 1000
    assert ten <= one * 1.12


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
        pytest.param(10, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
async def test_tabs_of_a_day_need_no_memory(each: int) -> None:
    """After the first hour, in which the samples become as many as there can be, 23 more add less than 10 MB.

    Fifty tabs for 24 hours are half a million pages, and take more than 20 minutes. Five tabs take a tenth of that.
    """
    async with opened_tabs() as tabs:
        await tabs.stay(each, SAMPLES * 5 + 60)
        before = memory()
        await tabs.stay(each, 23 * 3600)
        grown = memory() - before
        assert tabs.requests > 45_000 * each
    MEASURED.append(f"{tabs.requests:,} pages in 24 simulated hours of {5 * each} tabs: {grown / 1e6:+.1f} MB")
    assert grown < 10_000_000
