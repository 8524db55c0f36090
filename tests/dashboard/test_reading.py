"""What the pages know: probes, states, charts, risky settings, visible text."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from onceonly import CommitFailed, Endpoint, History, Off, SetupError, Tokens
from onceonly.model.maintenance_journal import MaintenanceJournal, TaskRun
from onceonly.ports.transport import Depth
from onceonly.runtime.environment import LIVE, Environment
from onceonly_dashboard.charts import chart
from onceonly_dashboard.endpoint_probes import EndpointProbes, QueueState, StoreState
from onceonly_dashboard.pages import age, duration, instant, number, size, visible
from onceonly_dashboard.probes import ANSWER_SECONDS, LONGEST_PERIOD, SAMPLES, Outage, Probe, Sample, Sampler
from onceonly_dashboard.state import EndpointLevel, findings_of, level_of
from onceonly_dashboard.views.settings import risks_of, settings_of
from tests.dashboard.serving import NOW, endpoint


class SteppedTimer:
    """A monotonic clock that a test moves, and a rest that lasts until the test allows the next read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self._allowed = asyncio.Semaphore(0)

    def seconds(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Wait for the test."""
        self.rests.append(seconds)
        await self._allowed.acquire()

    def allow(self) -> None:
        """End one rest."""
        self._allowed.release()


class Place:
    """Something that is read: slow, away or well."""

    def __init__(self, timer: SteppedTimer) -> None:
        self.timer = timer
        self.took = 0.0
        self.trouble: Exception | None = None
        self.opened = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Place"]:
        """Count the openings."""
        self.opened += 1
        yield self

    async def read(self) -> int:
        """Take so long, or fail."""
        self.timer.now += self.took
        if self.trouble is not None:
            raise self.trouble
        return 7


def probe_of(place: Place) -> Probe[Place, int]:
    """Read the place every 5 seconds."""
    environment = Environment(LIVE.clock, LIVE.random, LIVE.ids, place.timer)
    return Probe(place.open, Place.read, numbers=lambda value: {"n": value}, period=5.0, environment=environment)


async def test_a_slow_place_is_read_less_often() -> None:
    """The period doubles up to a minute, and is halved again."""
    place = Place(SteppedTimer())
    probe = probe_of(place)
    place.took = 0.3
    async with Sampler([probe]).running(NOW):
        for rounds in range(1, 7):
            await probe.wait_for(rounds)
            place.timer.allow()
        assert probe.period == LONGEST_PERIOD
        place.took = 0.0
        for rounds in range(7, 12):
            await probe.wait_for(rounds)
            place.timer.allow()
    assert probe.period < 10
    assert place.timer.rests[:4] == [10, 20, 40, 60]
    assert place.opened == 1


async def test_an_outage_keeps_the_last_value_and_opens_again() -> None:
    """With the reason and since when; a gap in the samples."""
    place = Place(SteppedTimer())
    probe = probe_of(place)
    async with Sampler([probe]).running(NOW):
        await probe.wait_for(1)
        place.trouble = CommitFailed("connection refused")
        place.timer.allow()
        await probe.wait_for(2)
        assert probe.outage is not None
        since = probe.outage.since
        assert (probe.value, probe.outage.reason, probe.outage.is_setup) == (7, "connection refused", False)
        place.trouble = SetupError("no tables")
        place.timer.allow()
        await probe.wait_for(3)
        assert (probe.outage.since, probe.outage.is_setup) == (since, True)
        place.trouble = None
        place.timer.allow()
        await probe.wait_for(4)
    assert probe.outage is None
    assert [sample.numbers for sample in probe.samples] == [{"n": 7}, {}, {}, {"n": 7}]
    assert place.opened == 3


async def test_a_place_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an outage, not as an error of the dashboard."""
    monkeypatch.setattr("onceonly_dashboard.probes.ANSWER_SECONDS", 0.01)
    place = Place(SteppedTimer())
    environment = Environment(LIVE.clock, LIVE.random, LIVE.ids, place.timer)

    async def never(_place: Place) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    probe: Probe[Place, int] = Probe(place.open, never, numbers=lambda _: {}, period=5.0, environment=environment)
    async with Sampler([probe]).running(NOW):
        await probe.wait_for(1)
    assert probe.outage is not None
    assert "no answer" in probe.outage.reason
    assert ANSWER_SECONDS == 2.0


async def test_samples_are_bounded_and_there_is_one_reader() -> None:
    """However many people look: starting twice starts nothing."""
    place = Place(SteppedTimer())
    probe = probe_of(place)
    sampler = Sampler([probe])
    sampler.start(NOW)
    sampler.start(NOW + 1)
    await probe.wait_for(1)
    assert (place.opened, sampler.since) == (1, NOW)
    await sampler.stop()
    assert probe.samples.maxlen == SAMPLES == 720


def probes(**settings: object) -> EndpointProbes:
    """Watch an endpoint whose places were all read."""
    found = EndpointProbes(endpoint("shop", **settings), LIVE)
    found.queue.value = QueueState(Depth(waiting=1, held=2, delayed=3))
    found.store.value = StoreState(pending=0)
    found.letters.value = 0
    return found


def test_an_endpoint_without_findings_is_healthy() -> None:
    """And unknown before everything was read."""
    found = probes()
    assert level_of(found, findings_of(found, NOW)) is EndpointLevel.HEALTHY
    found.letters.value = None
    assert level_of(found, findings_of(found, NOW)) is EndpointLevel.UNKNOWN


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        (StoreState(pending=3, oldest=61), EndpointLevel.DEGRADED, "3 records with unsent messages, the oldest for 1 min 1 s"),
        (StoreState(pending=1001, oldest=90), EndpointLevel.DEGRADED, "more than 1,000 records"),
        (StoreState(pending=3, oldest=59), EndpointLevel.HEALTHY, ""),
        (StoreState(pending=0, has_janitor=True), EndpointLevel.DEGRADED, "it never ran"),
        (StoreState(pending=0, unsubscribed={"Gone": 2}), EndpointLevel.DEGRADED, "2 events of type Gone had no subscriber"),
        (
            StoreState(pending=0, has_janitor=True, journal=MaintenanceJournal(at=NOW, interval=60_000)),
            EndpointLevel.HEALTHY,
            "",
        ),
        (
            StoreState(pending=0, has_janitor=True, journal=MaintenanceJournal(at=NOW - 600_000, interval=60_000)),
            EndpointLevel.DEGRADED,
            "no process ran the janitor",
        ),
        (
            StoreState(
                pending=0,
                journal=MaintenanceJournal(
                    at=NOW, interval=60_000, tasks={"x": TaskRun(at=NOW, failing_since=NOW - 5000, reason="disk full")}
                ),
            ),
            EndpointLevel.DEGRADED,
            "x: disk full",
        ),
    ],
)
def test_the_state_follows_from_what_the_store_tells(state: StoreState, level: EndpointLevel, words: str) -> None:
    """With the reason, and what to do."""
    found = probes()
    found.store.value = state
    findings = findings_of(found, NOW)
    assert level_of(found, findings) is level
    assert all(finding.advice for finding in findings)
    assert words in " ".join(finding.reason for finding in findings)


def test_dead_letters_and_a_missing_queue_need_attention() -> None:
    """An endpoint that only sends needs no queue."""
    found = probes()
    found.letters.value = 2
    found.queue.value = QueueState(None)
    assert [finding.part for finding in findings_of(found, NOW)] == ["transport", "dead letters"]


def test_an_outage_of_the_store_is_told_once() -> None:
    """The dead letters are in the same database."""
    found = probes()
    for probe in (found.store, found.letters):
        probe.outage = Outage("refused", NOW - 1000)
    (finding,) = findings_of(found, NOW)
    assert (finding.part, finding.level) == ("store", EndpointLevel.FAILING)


def test_a_chart_has_gaps_a_sentence_and_rows() -> None:
    """A gap is not drawn as 0."""
    samples = deque(
        [Sample(NOW, {"n": 2}), Sample(NOW + 5000, {"n": 4}), Sample(NOW + 10_000, {}), Sample(NOW + 15_000, {"n": 0})]
    )
    drawn = chart("n", "Waiting", samples)
    assert drawn.lines == ("3,24 81,3",)
    assert drawn.dots == ((237.0, 45.0),)
    assert drawn.label == "Waiting: 0 now, between 0 and 4 since 11:06 UTC."
    assert [value for _, value in drawn.rows] == ["0", "-", "4", "2"]


def test_a_chart_of_nothing_says_so() -> None:
    """And one of all samples has a bounded number of points."""
    assert chart("n", "Waiting", []).label == "Waiting: no value was read."
    full = chart("n", "Waiting", [Sample(NOW + 5000 * each, {"n": each}) for each in range(SAMPLES)])
    assert len(full.lines[0].split()) == 120
    assert full.last == "719"
    assert len(full.rows) <= 24


def test_risky_settings_are_found() -> None:
    """Each with advice; the defaults have none but memory."""
    memory = {"store in memory", "transport in memory"}
    assert {risk.setting for risk in risks_of(endpoint().settings)} == memory
    risky = endpoint(deduplication=History(timedelta(hours=8)), janitor=False, max_hops=None, timeout=600.0, relay_after=120.0)
    found = {risk.setting for risk in risks_of(risky.settings)} - memory
    assert found == {
        "retention of 8 h",
        "manual_retry=0",
        "janitor=False",
        "max_hops=None",
        "timeout of 10 min",
        "relay_after of 2 min",
    }
    off = Endpoint("shop", store="sqlite:///x.db", transport="sqlite:///x.db", deduplication=Off())
    assert [risk.setting for risk in risks_of(off.settings)] == ["deduplication=Off()"]


def test_settings_are_shown_without_secrets() -> None:
    """URLs are without user, password and options."""
    shop = Endpoint(
        "shop",
        store="postgresql://ana:s3cret@db.internal/shop?prefix=s3cret_",
        transport="amqp://ana:s3cret@mq.internal/",
    )
    text = repr(settings_of(shop.settings))
    assert "s3cret" not in text
    assert "db.internal" in text
    assert "Tokens" in repr(settings_of(endpoint(deduplication=Tokens("redis://x/0")).settings))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31mred\x07", "\N{SYMBOL FOR ESCAPE}[31mred\N{SYMBOL FOR BELL}"),
        ("a\u202eb\u200bc\ufeff", "a⟨202E⟩b⟨200B⟩c⟨FEFF⟩"),
        ("\x00\x7f\x85", "\N{SYMBOL FOR NULL}\N{SYMBOL FOR DELETE}⟨0085⟩"),
        ("line\r\nnext\rback", "line\nnext\N{SYMBOL FOR CARRIAGE RETURN}back"),
        ("Grüße \N{SNOWMAN}", "Grüße \N{SNOWMAN}"),
        ("\ud800", "⟨D800⟩"),
    ],
)
def test_characters_that_hide_become_visible(text: str, shown: str) -> None:
    """Terminal escapes and bidirectional overrides."""
    assert visible(text) == shown


def test_numbers_are_short_and_exact() -> None:
    """With their units."""
    assert [number(each) for each in (0, 1234, 12.34, 1234.5)] == ["0", "1,234", "12.3", "1,234"]
    assert [age(each) for each in (0, 0.4, 0.01, 9.94, 59.9, 61, 90_000)] == [
        *("0 s", "0.4 s", "0.1 s", "9.9 s"),
        *("59 s", "1 min 1 s", "1 d 1 h"),
    ]
    durations = [duration(each) for each in (0, 1234, 912_345, 2_500_000, 61_000_000)]
    assert durations == ["0 ms", "1.2 ms", "912 ms", "2.5 s", "1 min 1 s"]
    assert [size(each) for each in (34, 64_000, 1_500_000)] == ["34 B", "64 kB", "1.5 MB"]
    assert [instant(each) for each in (0, -(10**18), 10**18)] == [
        "1970-01-01 00:00:00Z",
        "0001-01-01 00:00:00Z",
        "9999-12-31 23:59:59Z",
    ]


async def test_looking_creates_no_file(tmp_path: Path) -> None:
    """A SQLite database that is not there stays away, and the page says what creates it."""
    url = f"sqlite:///{tmp_path}/shop.db"
    found = EndpointProbes(Endpoint("shop", store=url, transport=url), LIVE)
    for open_ in (found.open_store, found.open_letters, found.open_transport):
        with pytest.raises(SetupError, match="does not exist"):
            async with open_():
                pass
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - nothing else runs
