"""The demo, with connections cut at COMMIT: before the server has it, or after it was applied. Nobody is told which it was."""

import random
from collections import Counter

import pytest

from onceonly_demo.flights import load, sends
from onceonly_demo.options import Deduplication, DemoOptions
from onceonly_demo.run import Result, run
from onceonly_demo.view import ViewState
from tests.faults.demo_harness import exactly_once
from tests.servers.available import RABBITMQ, need
from tests.servers.cutting_commits import Cutter, cutting

FLIGHTS = 300
CUTS, SHARE = 5, 0.4  # of each kind; and how many of the commits are cut in one way or the other, until then
JOURNAL_ROW = b"ledger\0\0\0\x04demo"  # a row of a handler of `ledger`, in PostgreSQL's protocol: the endpoint, and the source


class SomeCommits:
    """Decides by chance which COMMIT is cut, and how, once the processes are to start: a number of each, and no more."""

    def __init__(self, cutter: Cutter) -> None:
        self.cutter = cutter
        self._rng = random.Random(2013)  # noqa: S311 - a reproducible choice, no secret
        self._has_begun = False
        self.made: Counter[str] = Counter()
        cutter.decide = self.decide

    def show(self, scene: ViewState) -> None:
        """Begin now: everything is prepared."""
        self._has_begun = True

    def decide(self) -> str:
        """Say what becomes of one COMMIT."""
        if not self._has_begun or self._rng.random() >= SHARE:
            return ""
        left = [moment for moment in ("before", "after") if self.made[moment] < CUTS]
        moment = self._rng.choice(left) if left else ""
        self.made[moment] += 1
        return moment


class HandlersCommits(SomeCommits):
    """Cuts the first commits of handlers, each after it was applied."""

    def show(self, scene: ViewState) -> None:
        """Begin now, and look only at what handlers of `ledger` write."""
        super().show(scene)
        self.cutter.about = JOURNAL_ROW

    def decide(self) -> str:
        """Say what becomes of one COMMIT."""
        if self.cutter.about != JOURNAL_ROW or self.made["after"] == CUTS:
            return ""
        self.made["after"] += 1
        return "after"


async def demo_with_cut_commits(
    url: str, deduplication: Deduplication = Deduplication.HISTORY, kind: type[SomeCommits] = SomeCommits
) -> tuple[Result, DemoOptions]:
    """Run it on the store behind a cutter, with a queue in RabbitMQ."""
    async with cutting(url) as (cutter, through):
        place = {"store": through, "transport": need(RABBITMQ)}
        options = DemoOptions(flights=FLIGHTS, kills=0, processes=2, deduplication=deduplication, **place)
        cuts = kind(cutter)
        result = await run(load(FLIGHTS), options, cuts.show)
    assert (cuts.made["before"], cuts.made["after"]) == (CUTS if kind is SomeCommits else 0, CUTS)
    return result, options


@pytest.mark.slow
async def test_every_flight_counts_once_though_commits_are_cut_on_postgresql(postgresql_url: str) -> None:
    """Crash here: 1 COMMIT was said, 2 no answer comes, 3 the message is released, 4 its claim tells what happened."""
    exactly_once(*await demo_with_cut_commits(postgresql_url))


@pytest.mark.slow
async def test_every_flight_counts_once_though_commits_are_cut_on_mariadb(mariadb_url: str) -> None:
    """The same, in another protocol."""
    exactly_once(*await demo_with_cut_commits(mariadb_url))


@pytest.mark.slow
async def test_the_control_run_shows_what_cut_commits_do(postgresql_url: str) -> None:
    """Without deduplication a commit whose answer was lost is made again, also of messages that were sent once."""
    result, options = await demo_with_cut_commits(postgresql_url, Deduplication.OFF, HandlersCommits)
    sent = Counter(send.message.id for send in sends(load(FLIGHTS), options.seed))
    once = {name for flight in load(FLIGHTS) if sent[flight.id] == 1 for name in (flight.id, flight.announced_as)}
    handled = Counter(line.id for line in result.remains.journal)
    assert [name for name in once if handled[name] > 1]
    assert result.findings.duplicated > 0
