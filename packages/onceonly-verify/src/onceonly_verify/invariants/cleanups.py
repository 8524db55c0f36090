"""What attempts left behind is removed in the order that the register promises: cancel the row, delete, remove the row."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly_verify.invariants.logged import WrongReportError


class _Cleaned:
    """One row whose cancellation was requested, and what followed."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.has_failed = self.is_there = self.is_removed = False


class CleanupLog:
    """Notes what one run does with register rows and artifacts. A call that breaks a rule raises WrongReportError."""

    def __init__(self, now: Callable[[], int], *, is_uncancelled: bool = False) -> None:
        """Begin with nothing cancelled; `now` is the clock of the run. `is_uncancelled`: no attempt is cancelled by another."""
        self._now = now
        self._is_uncancelled = is_uncancelled
        self._latest: dict[Identity, str] = {}
        """The attempt of this run at each message: the last one for which it opened a row."""
        self._known: set[str] = set()
        self._rows: list[_Cleaned] = []
        self._found: list[Reservation] = []
        self._asked: set[tuple[str, Identity]] = set()

    def begin(self) -> None:
        """Begin one call of the effects. Rows that were cancelled before stay cancelled."""
        self._rows, self._found, self._asked = [], [], set()

    def opens(self, rows: Sequence[Reservation]) -> None:
        """Note that rows are to be opened. Their age decides when a sweeper may cancel them."""
        for row in rows:
            if row.at != self._now():
                raise WrongReportError(f"hasty: the register row of attempt {row.attempt} is not opened as one of now")
        self._latest |= {row.identity: row.attempt for row in rows}

    def refused(self) -> None:
        """Check that rows may be refused: another process has cancelled an attempt."""
        if self._is_uncancelled:
            raise WrongReportError("refused: a register row is refused, and no other process has cancelled its attempt")

    @contextmanager
    def failure_noted(self) -> Iterator[None]:
        """Note that the call in this block raised: what it was made for may not be complete."""
        try:
            yield
        except Exception:
            for row in self._rows[-1:]:
                row.has_failed = True
            raise

    def looks(self, identities: Sequence[Identity], unit: str) -> None:
        self._asked |= {(unit, identity) for identity in identities}

    def found(self, rows: Sequence[Reservation]) -> None:
        self._found += rows

    def cancels(self, attempt: str) -> None:
        """Note that a row is to be cancelled."""
        self._rows.append(_Cleaned(attempt))

    def cancelled(self, attempt: str, *, is_there: bool) -> None:
        """Note that a row is cancelled, or gone."""
        self._known.add(attempt)
        self._rows[-1].is_there = is_there

    def removes(self, attempt: str) -> None:
        """Check that a row may be removed."""
        if attempt not in self._known:
            raise WrongReportError(f"leak: the register row of attempt {attempt} is to be removed, and it is not cancelled")

    def removed(self, attempt: str) -> None:
        for row in self._rows:
            row.is_removed |= row.attempt == attempt

    def deletes(self, name: str) -> None:
        """Check that an artifact may be deleted."""
        attempt = name.partition("/")[0]
        if attempt not in self._known:
            raise WrongReportError(f"unmade: {name!r} is to be deleted, and the row that permits its commit is not cancelled")

    def discarded(self, records: Sequence[Record]) -> None:
        """Check that these attempts are cancelled. Their rows stay: a repeated request may still make an artifact."""
        cancelled = {row.attempt for row in self._rows}
        for attempt in (record.attempt for record in records if record.attempt not in {"", *cancelled}):
            raise WrongReportError(f"leak: attempt {attempt} has lost, and its register row is not cancelled")

    def cleaned(self, records: Sequence[Record]) -> None:
        """Check that the rows of all these messages were read, and that all open ones were cancelled."""
        missed = sorted({(record.unit, record.identity) for record in records} - self._asked)
        if missed:
            raise WrongReportError(f"leak: {missed[0][1].id!r} is finished, and the register rows of its attempts are not read")
        cancelled = {row.attempt for row in self._rows}
        for attempt in (row.attempt for row in self._found if not row.cancelled and row.attempt not in cancelled):
            raise WrongReportError(f"leak: a message is finished, and the register row of attempt {attempt} is open")
        mine = {row.attempt for row in self._rows if row.is_there and not row.is_removed} & {*self._latest.values()}
        for attempt in sorted(mine):  # it ran no handler, so no artifact can be left
            raise WrongReportError(f"leak: attempt {attempt} found its message handled, and leaves its own register row")

    def swept(self, reported: int) -> None:
        """Check the number that a sweep reports. A row stays while another service is away."""
        done = sum(not row.has_failed and (row.is_removed or not row.is_there) for row in self._rows)
        if reported != done:
            raise WrongReportError(f"miscounted: a sweep of register rows reports {reported}, and {done} were swept")


class WatchedRegister:
    def __init__(self, register: Any, log: CleanupLog) -> None:
        self._register, self._log = register, log

    def __getattr__(self, name: str) -> Any:
        """Make every other call as it is."""
        return getattr(self._register, name)

    async def open(self, rows: Sequence[Reservation]) -> None:
        self._log.opens(rows)
        try:
            await self._register.open(rows)
        except ConflictError:
            self._log.refused()
            raise

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        self._log.looks(identities, unit)
        found: tuple[Reservation, ...] = await self._register.rows(identities, unit)
        self._log.found(found)
        return found

    async def cancel(self, row: Reservation) -> bool:
        self._log.cancels(row.attempt)
        with self._log.failure_noted():
            is_there: bool = await self._register.cancel(row)
        self._log.cancelled(row.attempt, is_there=is_there)
        return is_there

    async def remove(self, row: Reservation) -> None:
        """Remove a row; see the port. Raises WrongReportError if it is not cancelled."""
        self._log.removes(row.attempt)
        with self._log.failure_noted():
            await self._register.remove(row)
        self._log.removed(row.attempt)


class WatchedArtifacts:
    """A place of artifacts whose deletions are noted."""

    def __init__(self, artifacts: Any, log: CleanupLog) -> None:
        self._artifacts, self._log = artifacts, log

    def __getattr__(self, name: str) -> Any:
        """Make every other call as it is."""
        return getattr(self._artifacts, name)

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        with self._log.failure_noted():
            listed: tuple[str, ...] = await self._artifacts.names(prefix)
        return listed

    async def delete(self, name: str) -> None:
        """Delete an artifact; see the port. Raises WrongReportError if its attempt may still be committed."""
        self._log.deletes(name)
        with self._log.failure_noted():
            await self._artifacts.delete(name)


class WatchedRequests(WatchedArtifacts):
    """Another service whose deletions are noted. An attempt may have made some requests of it, which are numbered."""

    def __init__(self, remote: Any, log: CleanupLog, most: int) -> None:
        """Watch this one; `most` is the largest number of requests that an attempt makes."""
        super().__init__(remote, log)
        self._most = most

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """Name what an attempt may have requested; see the port."""
        return tuple(f"{prefix}{index}" for index in range(max(self._most, 1)))


class WatchedEffects:
    """The effects of an endpoint, and whether they clean up all that they are asked to."""

    def __init__(self, effects: Any, log: CleanupLog) -> None:
        """Watch these, whose register and artifacts write this log."""
        self._effects, self._log = effects, log

    def __getattr__(self, name: str) -> Any:
        """Make every other call as it is."""
        return getattr(self._effects, name)

    async def discard(self, records: Sequence[Record]) -> None:
        """Clean up after attempts that have lost; see the port. Raises WrongReportError."""
        self._log.begin()
        await self._effects.discard(records)
        self._log.discarded(records)

    async def clean(self, records: Sequence[Record]) -> None:
        """Clean up after the other attempts at messages; see the port. Raises WrongReportError."""
        self._log.begin()
        await self._effects.clean(records)
        self._log.cleaned(records)

    async def sweep(self, older_than: int, limit: int) -> int:
        """Clean up after old attempts; see the port. Raises WrongReportError."""
        self._log.begin()
        swept: int = await self._effects.sweep(older_than, limit)
        self._log.swept(swept)
        return swept
