"""Running one message with the process to itself, so that its death is that message's and no other's."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import ConflictError, RetryableError
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.run_markers import NO_DEATHS, DeadRuns, RunMarkers, StartResult
from onceonly.runtime.environment import Environment
from onceonly.runtime.processes.counters import Column, CounterRow
from onceonly.runtime.worker.backpressure import Backpressure

FAIR_SECONDS = 1.0
"""Seconds for which units that are alone may follow one another while others wait."""

RECORD_SECONDS, RECORD_CHECKS = 0.005, 400
"""How often, and how many times, a death is waited for that the supervisor has not recorded. It may have died as well."""

_log = EventLogger(logging.getLogger("onceonly.worker"))


class UnitGate:
    """The units in progress in this process, of all endpoints: any number of them, or one that is alone.

    Both sides may name themselves. Who waits for longer than its `patience`, in seconds, logs once what it waits for.
    """

    def __init__(self) -> None:
        self._inside: Counter[str] = Counter()
        self._holder = ""
        self._closed_since = 0.0
        self._alone = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def enter(self, name: str = "", *, patience: float | None = None) -> None:
        if not self._open.is_set():
            with self._reporting(name, patience):
                while not self._open.is_set():
                    await self._open.wait()
        self._inside[name] += 1
        self._empty.clear()

    def leave(self, name: str = "") -> None:
        self._inside[name] -= 1
        if not self._inside[name]:
            del self._inside[name]
        if not self._inside:
            self._empty.set()

    async def clear(self, name: str = "", *, patience: float | None = None) -> None:
        """Wait until all units have ended; none begins until `reopen`."""
        with self._reporting(name, patience):
            await self._alone.acquire()
            try:
                now = asyncio.get_running_loop().time()
                if now - self._closed_since > FAIR_SECONDS:
                    self._closed_since = now
                    await asyncio.sleep(0)  # those who wait enter now: nothing is closed yet
                self._open.clear()
                await self._empty.wait()
                self._holder = name
            except BaseException:
                self.reopen()
                raise

    def reopen(self) -> None:
        self._holder = ""
        self._open.set()
        self._alone.release()

    @contextmanager
    def _reporting(self, name: str, patience: float | None) -> Iterator[None]:
        """Enclose a wait: log what it waits for when it takes too long."""
        if patience is None:
            yield
            return
        started, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()

        def report() -> None:
            busy = self._holder or ", ".join(sorted(self._inside))
            _log.warning(
                "unit waits for longer than the longest handler",
                extra={"unit": name, "waits_for": busy, "seconds": round(loop.time() - started, 1)},
            )

        timer = loop.call_later(patience, report)
        try:
            yield
        finally:
            timer.cancel()


_GATES: WeakKeyDictionary[asyncio.AbstractEventLoop, UnitGate] = WeakKeyDictionary()


def gate() -> UnitGate:
    """Return the gate of the running event loop: one for all endpoints of a process."""
    return _GATES.setdefault(asyncio.get_running_loop(), UnitGate())


class GateMember:
    """One loop's part in the gate: its units, and whether it has the process to itself.

    `patience` is how many seconds it waits before it logs what it waits for: the longest that a handler may take.
    """

    def __init__(self, endpoint: str = "", *, patience: float | None = None) -> None:
        self._gate: UnitGate | None = None
        self._endpoint = endpoint
        self._patience = patience
        self.is_alone = False
        self.is_marked = False
        """Whether the message that runs alone is marked in the shared counters, so its handler needs no mark."""

    async def enter(self) -> bool:
        """Begin a unit. Returns whether `leave` must be called: not for a unit that has the process to itself."""
        if self.is_alone:
            return False
        self._gate = self._gate or gate()
        await self._gate.enter(self._endpoint, patience=self._patience)
        return True

    def leave(self) -> None:
        if self._gate is not None:
            self._gate.leave(self._endpoint)

    async def clear(self, message: str = "") -> None:
        self._gate = self._gate or gate()
        await self._gate.clear(f"{self._endpoint}: {message}", patience=self._patience)
        self.is_alone = True

    def reopen(self) -> None:
        """Admit other units again. Harmless if it was not alone."""
        if self.is_alone and self._gate is not None:
            self.is_alone = False
            self._gate.reopen()


class IsolatedRuns:
    """The run markers of one loop: a run that is recorded has the process to itself, and is removed however long that takes.

    What the supervisor saw is in the shared counters, so an ordinary suspect costs no call. A run is marked there from before
    its record is written until after it is removed: a death that the supervisor sees never leaves a record to be waited for.
    A death is removed from the counters after its record, so that a process that dies in between leaves none either.
    """

    def __init__(
        self,
        run_markers: RunMarkers,
        membership: GateMember,
        *,
        endpoint: str,
        environment: Environment,
        row: CounterRow | None = None,
    ) -> None:
        """Enclose these run markers, for a loop in the process of this row."""
        self._run_markers = run_markers
        self._membership = membership
        self._endpoint = endpoint
        self._environment = environment
        self._row = row
        self._recorded: Identity | None = None
        self._mark: tuple[bytes, int] | None = None

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Read the deaths in the shared counters. Each costs a call: its run may have been alone."""
        if self._row is None:
            return NO_DEATHS
        await self._until_recorded(self._row)
        counted = await self._take_deaths(self._row, identities)
        return DeadRuns(counted=counted, explained=self._row.explains())

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        """Wait until no other unit runs, then record the run. What the supervisor saw of another one needs no record."""
        if self._row is not None:
            await self._until_recorded(self._row)
        await self._membership.clear(f"{identity.source} {identity.id}")
        try:
            seen = await self._take_deaths(self._row, [identity]) if self._row is not None else {}
            if seen.get(identity, -1) >= attempts:
                started = StartResult(died=seen[identity])
            else:
                await self._forget_killed(identity)
                self._enter(identity, attempts)
                self._recorded = identity  # from here on it may be written
                started = await self._run_markers.begin(identity, attempts)
        except (RetryableError, ConflictError):
            raise  # `finish` follows
        except BaseException:
            self.leave()
            raise
        if started.died is not None or started.wait:
            self._recorded = None
            self.leave()
        return started

    async def finish(self, identity: Identity) -> None:
        """Remove the record, however often it takes, and let others in again."""
        backpressure = Backpressure(1, self._environment.random)
        try:
            while self._recorded is not None:
                try:
                    await self._run_markers.finish(identity)
                    self._recorded = None
                except (RetryableError, ConflictError):
                    await self._environment.timer.sleep(backpressure.after_outage())
        finally:
            self.leave()

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the record of a run whose death was counted."""
        await self._run_markers.forget(identity, attempts)

    async def close(self) -> None:
        """End what a bug or a stop has left open."""
        if self._recorded is not None:
            await self.finish(self._recorded)
        self.leave()

    async def _until_recorded(self, row: CounterRow) -> None:
        """Wait until the supervisor has recorded each death: a broker may deliver the messages again before that."""
        for _ in range(RECORD_CHECKS):
            if not row.awaits_record():
                return
            await self._environment.timer.sleep(RECORD_SECONDS)

    async def _take_deaths(self, row: CounterRow, identities: Sequence[Identity]) -> dict[Identity, int]:
        """Return the attempt counts of the runs whose death was seen, and remove each death, but the records first.

        Another copy of a message would wait for a record without a death until the record counts as dead.
        """
        keys = {identity: claim_key(self._endpoint, identity) for identity in identities}
        seen = {identity: row.death_of(key) for identity, key in keys.items()}
        found = {identity: attempts for identity, attempts in seen.items() if attempts is not None}
        for identity, attempts in found.items():
            await self.forget(identity, attempts)
        # Crash here: 1 records removed, 2 the process died, 3 the deaths are found again.
        for identity, attempts in found.items():
            row.remove_deaths(keys[identity], attempts)
        return found

    async def _forget_killed(self, identity: Identity) -> None:
        """Remove the record of a run that the supervisor of this process killed: nothing is counted for it."""
        if self._row is None:
            return
        key = claim_key(self._endpoint, identity)
        attempts = self._row.killed_run_of(key)
        if attempts is not None:
            await self.forget(identity, attempts)
            self._row.remove_killed_runs(key, attempts)

    def _enter(self, identity: Identity, attempts: int) -> None:
        if self._row is not None:
            self._mark = claim_key(self._endpoint, identity), attempts
            self._row.enter(*self._mark)
            self._row.set(Column.ALONE, 1)
            self._membership.is_marked = True

    def leave(self) -> None:
        """Remove the mark, and let others in again. A record may be left. Harmless when repeated."""
        if self._row is not None and self._mark is not None:
            self._row.set(Column.ALONE, 0)
            self._row.leave(*self._mark)
        self._mark, self._membership.is_marked = None, False
        self._membership.reopen()
