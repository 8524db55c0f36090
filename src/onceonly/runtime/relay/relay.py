"""The poller around `algorithms/relay`: when to look for records, and what to say. It decides nothing about a message.

told      a commit in this process rang: send exactly those records, at once, and find those that only may be committed; what
          is sent is forgotten a little later, several records by one statement
look      take the records that are older than `relay_after`, page by page; what one relay has taken others leave to it
rest      until the next look, a commit, or the stop

What is sent and not forgotten when the process dies is sent again. So at most `FEW` records are in that state, unless many
wait: the number grows with the backlog, up to a page.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onceonly.algorithms.relay import RelayResult, relay
from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.model.errors import WrongEventLoop
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.bundle import RelayPorts
from onceonly.ports.store import Records
from onceonly.runtime.background import run_until_stopped
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, TaskSpans
from onceonly.runtime.processes.notifier import CommittedRecord, Notifier
from onceonly.runtime.worker.backpressure import Backpressure
from onceonly.runtime.worker.batched_delete import FEW, BackgroundDelete

PAGE = 100
BACKLOG_PARTS = 16
"""Which part of a longer backlog is sent at once."""
LONGEST_IDLE_SECONDS = 10.0
"""Seconds between two looks when there is nothing to find, spread by chance up to half as much again."""
LEASE_SECONDS = 10.0
"""Seconds for which others leave to a relay what it has taken. What it took before it died waits for so long."""
MOST_REFUSED_IDLE_SECONDS = 60.0
"""Seconds between two looks when all that is found is refused: each look sends it once more."""
MOST_ANNOUNCED = 10_000
"""How many announced records are remembered while they cannot be sent; more are found by looking, a little later."""
NAMED = 3

_log = EventLogger(logging.getLogger("onceonly.relay"))


class Relay:
    """Dispatches the records of one endpoint that no worker dispatches, until it is stopped.

    Correct alone or next to any number of others, in this process or elsewhere, with which it shares the work. `after` is in
    seconds; `grace` is how long a stop waits for what is in work. An outage of any port makes it wait and try again, forever.
    """

    def __init__(
        self,
        ports: RelayPorts,
        *,
        after: float,
        grace: float,
        notifier: Notifier,
        environment: Environment = LIVE,
        spans: TaskSpans = NO_TASK_SPANS,
    ) -> None:
        """Prepare to run; nothing is read before `run`."""
        self._sent = SentRecords(ports.store)
        self._ports = ports._replace(store=self._sent)
        self._spans = spans
        self._later = BackgroundDelete(ports.store, environment.timer, enough=FEW, failed=self._retry_undeleted)
        self._telling = ports._replace(store=self._later)
        self._after = after
        self._grace = grace
        self._notifier = notifier
        self._environment = environment
        self._backpressure = Backpressure(PAGE, environment.random)
        self._rung = asyncio.Event()
        self._announced: list[CommittedRecord] = []
        self._was_announced = False
        self._look_at = environment.timer.seconds()
        self._idle = self._shortest = min(after, LONGEST_IDLE_SECONDS)
        self._look = RelayScan()
        self._refused: frozenset[Identity] = frozenset()
        self._unforgotten: BaseException | None = None
        self._failures = FailureLog(
            _log, "relay cannot dispatch, retrying with backoff", endpoint=ports.endpoint, every_bug=True
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish what is in work, and what a commit has just told, within the grace time.

        Raises WrongEventLoop, which is the same in each turn.
        """
        try:
            with self._notifier.listen(self._add_notified):
                await run_until_stopped(self._run_rounds(stop), stop, rung=self._rung, grace=self._grace)
        except WrongEventLoop as error:
            _log.error("relay failed", extra={"endpoint": self._ports.endpoint, "reason": str(error)})
            raise
        finally:
            await self._later.close()

    def _add_notified(self, announced: Sequence[CommittedRecord]) -> None:
        has_many = len(self._announced) >= PAGE  # of those that wait for their turn only the names are kept
        self._queue([_identity(each) for each in announced] if has_many else announced)
        self._rung.set()

    def _queue(self, announced: Sequence[CommittedRecord]) -> None:
        self._announced.extend(announced)
        self._announced[MOST_ANNOUNCED:] = []  # some look finds the others

    async def _run_rounds(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._rung.clear()
            seconds = await self._run_round()
            await asyncio.sleep(0)  # adapters in memory never wait; signals need their turn all the same
            if stop.is_set():
                break
            # a commit ends the rest, but in an outage it would only add to the trouble
            await pause(seconds, self._environment.timer, stop if self._failures.is_failing else self._rung)
        await asyncio.sleep(0)  # a commit just before the stop has rung, and is heard in the loop's next turn
        while not self._failures.is_failing and (self._announced or self._sent.left or not self._later.is_settled):
            await (self._run_round() if self._announced or self._sent.left else self._later.settle())

    async def _run_round(self) -> float:
        """Relay the notified records, or one page of those that are due, by turns. Returns how long to rest."""
        announced = () if self._was_announced and self._seconds_to_scan() <= 0 else tuple(self._announced)
        self._was_announced = bool(announced)
        try:
            await self._delete_undeleted()
            relayed = await self._relay_notified(announced) if announced else await self._relay_page()
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, kills no relay
            self._failures.failed(error)
            return self._backpressure.after_outage()
        if relayed.unknown:
            self._failures.failed(None, reason="an effect was not confirmed")
            return self._backpressure.after_outage()
        if self._failures.is_failing and self._announced and relayed == RelayResult():
            return self._backpressure.after_outage()  # nothing was sent, so whether it is over is unknown
        self._log_recovery()
        return 0.0 if self._announced else max(0.0, self._seconds_to_scan())

    def _seconds_to_scan(self) -> float:
        return self._look_at - self._environment.timer.seconds()

    async def _relay_notified(self, announced: Sequence[CommittedRecord]) -> RelayResult:
        most = portion(len(announced))
        await self._later.settle(most // 2)
        some = announced[: most - self._later.count]
        self._announced[: len(some)] = []
        unknown = [each for each in some if not isinstance(each, Record)]
        with self._retrying([_identity(each) for each in some]):
            found = await self._ports.pending.find(unknown) if unknown else ()
            records = [*(each for each in some if isinstance(each, Record)), *found]
            return await self._relay(
                records, self._ports if self._failures.is_failing else self._telling
            )  # it ends with the forgetting

    async def _relay_page(self) -> RelayResult:
        """Relay the next page of old records. What stays is passed over until all behind it had its turn."""
        await self._later.settle()  # what is on its way out of the store is not sent again
        await self._delete_undeleted()
        older_than = self._environment.clock.now() - round(self._after * 1000)
        take = self._ports.pending.take
        records = await take(older_than, PAGE, lease=round(LEASE_SECONDS * 1000), after=self._look.behind)
        parts: list[RelayResult] = []
        most = self._look.portion
        for start in range(0, len(records), most):
            with self._retrying([record.identity for record in records[start:]]):
                parts.append(await self._relay(records[start : start + most], self._ports))
        relayed = _joined(parts)
        self._look.add(records, relayed)
        if len(records) < PAGE:
            await self._end_scan()
        return relayed

    async def _relay(self, records: Sequence[Record], ports: RelayPorts) -> RelayResult:
        if not records:
            return RelayResult()
        with self._spans.task("relay", count=len(records)):
            relayed = await relay(records, ports)
        self._queue([record.identity for record in relayed.unknown])
        return relayed

    @contextmanager
    def _retrying(self, identities: Sequence[Identity]) -> Iterator[None]:
        """Try these again soon if the block fails: for a while no other relay takes them."""
        try:
            yield
        except Exception:
            self._queue(
                [each for each in identities if each not in self._sent.left]
            )  # behind the others, which may fare better
            raise

    def _retry_undeleted(self, records: Sequence[Record], error: BaseException) -> None:
        """Delete these again before anything else is sent. They are not sent again."""
        self._sent.add(records)
        self._unforgotten = error
        self._rung.set()

    async def _delete_undeleted(self) -> None:
        """Raise the error of a deletion in the background once. The next call deletes what is left."""
        error, self._unforgotten = self._unforgotten, None
        if error is not None:
            raise error
        await self._sent.delete_left()

    async def _end_scan(self) -> None:
        """Adapt to a whole scan: how long to wait for the next, and what is refused."""
        look = self._look
        if not look.refused and self._refused:  # gone, or taken by another relay just now
            look.refused = [record.identity for record in await self._ports.pending.find(sorted(self._refused)[:PAGE])]
        self._look = RelayScan()
        is_stuck = bool(look.refused) and not look.finished
        self._idle = min(MOST_REFUSED_IDLE_SECONDS, self._idle * 2) if is_stuck else self._shortest
        self._look_at = self._environment.timer.seconds() + self._idle * (1 + self._environment.random.fraction() / 2)
        self._log_refused(look)

    def _log_recovery(self) -> None:
        self._backpressure.after_receiving()
        if self._failures.succeeded():
            _log.info("relay recovered", extra={"endpoint": self._ports.endpoint})

    def _log_refused(self, look: "RelayScan") -> None:
        known = self._refused
        self._refused = known.union(look.refused) if look.refused else frozenset()
        if self._refused - known:
            _log.warning(
                "relay: messages rejected by the broker, will be retried",
                extra={
                    "endpoint": self._ports.endpoint,
                    "count": len(look.refused),
                    "message_ids": ", ".join(look.message_ids[:NAMED]),
                    "reason": f"no queue, or too large: {', '.join(sorted(look.words)[:NAMED])}",
                },
            )
        elif known and not self._refused:
            _log.info("relay: messages no longer rejected by the broker", extra={"endpoint": self._ports.endpoint})


def portion(waiting: int) -> int:
    """Return how many of the waiting records may be sent and not forgotten at once."""
    return min(PAGE, max(FEW, waiting // BACKLOG_PARTS))


def _joined(parts: Sequence[RelayResult]) -> RelayResult:
    names = RelayResult.__struct_fields__
    return RelayResult(**{name: tuple(record for part in parts for record in getattr(part, name)) for name in names})


def _identity(announced: CommittedRecord) -> Identity:
    return announced.identity if isinstance(announced, Record) else announced


class SentRecords:
    """Deletes records that were sent. Those that could not be deleted are kept, so that they are not sent again."""

    def __init__(self, store: Records) -> None:
        self._store = store
        self.left: dict[Identity, Record] = {}

    def add(self, records: Sequence[Record]) -> None:
        self.left.update((record.identity, record) for record in records)

    async def forget(self, records: Sequence[Record]) -> None:
        try:
            await self._store.forget(records)
        except Exception:
            self.add(records)
            raise

    async def delete_left(self) -> None:
        """Delete what could not be deleted. Raises what the store raises: then all of it is still left."""
        if records := [*self.left.values()]:
            await self._store.forget(records)
            for record in records:  # others may have come meanwhile
                del self.left[record.identity]


class RelayScan:
    """One pass over all old records, page by page: how far it is, and what it found."""

    def __init__(self) -> None:
        self.behind: Identity | None = None
        self.refused: list[Identity] = []
        self.words: set[str] = set()
        self.message_ids: list[str] = []
        self.finished = False
        self.portion = FEW
        """How many records of a page are sent at once. It doubles with each full page: there is a backlog."""

    def add(self, records: Sequence[Record], relayed: RelayResult) -> None:
        """Take a page in; the next one begins behind it."""
        self.behind = records[-1].identity if records else self.behind
        self.refused += [record.identity for record in relayed.refused]
        sends = [send for record in relayed.refused for send in record.effects]
        self.words |= {f"{send.message.type} to {send.to or 'its subscribers'}" for send in sends}
        self.message_ids += [send.message.id for send in sends]
        self.finished |= bool(relayed.finished)
        if len(records) == PAGE:
            self.portion = min(PAGE, 2 * self.portion)
