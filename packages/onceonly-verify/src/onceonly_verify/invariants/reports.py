"""What a program returns at its end must agree with what it was given, and with what it did."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from onceonly.model.errors import CommitRefused, ConflictError, OnceOnlyError, RetryableError, UpgradeRequired, VersionConflict
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.record import Record
from onceonly.ports.bundle import Ports
from onceonly_verify.invariants.batch_log import DEAD, FINISHED, RETRIED, BatchLog, Observed
from onceonly_verify.invariants.logged import LoggedMessage, WrongReportError
from onceonly_verify.invariants.looks import LookLog

__all__ = ["RelayLog", "WatchedSweep", "WrongReportError", "reported", "with_each_record"]

CLASSES = ("handled", "known", "dead", "retried", "postponed", "conflicted", "unknown")
"""Each delivery is counted in exactly one of them."""
PARTS = ("idle", "dropped", "lost_race", "needs_upgrade", "slot_not_ready", "failed")
"""What is counted besides."""


async def reported(
    deliver: Callable[..., Coroutine[Any, Any, Any]], batch: Sequence[Delivery], ports: Ports, *, isolated: bool = False
) -> Any:
    """Run the delivery shell, and compare its report with its calls. Raises WrongReportError."""
    watched = LookLog(batch, ports, ports.controls).ports if ports.controls else ports
    log = BatchLog(batch, watched, isolated=isolated)
    report = await deliver(batch, log.ports, isolated=isolated)
    if left := [delivery for delivery in batch if delivery.receipt not in log.ends]:
        raise WrongReportError(f"left behind: of {len(batch)} deliveries, {len(left)} are neither acked nor released")
    if log.left_open:
        raise WrongReportError(f"leak: a unit with {log.left_open} is neither committed nor abandoned")
    if report is None:
        raise WrongReportError("miscounted: the delivery shell returns nothing")
    if problem := problem_of(report, log):
        raise WrongReportError(f"miscounted: of {len(batch)} deliveries, {problem}")
    handlers: Any = ports.handlers
    if handlers.workload.alone and report.conflicted + report.unknown:
        raise WrongReportError(
            f"miscounted: {report.conflicted} conflicted, {report.unknown} unknown, and nobody else is at work"
        )
    return report


async def with_each_record(work: Coroutine[Any, Any, Any], records: Sequence[Any]) -> Any:
    """Relay records. Raises WrongReportError unless each is finished, refused, unknown or away."""
    relayed = await work
    reported = [
        record.identity for part in (relayed.finished, relayed.refused, relayed.unknown, relayed.away) for record in part
    ]
    if Counter(reported) != Counter(record.identity for record in records):
        raise WrongReportError(f"miscounted: {len(records)} records were relayed, and {len(reported)} are reported")
    return relayed


class RelayLog:
    """Notes what a relay does with records: one that is forgotten is found by no other relay. `ports` are what it uses."""

    def __init__(self, ports: Ports) -> None:
        self._done: dict[str, set[Identity]] = {"clean": set(), "retire": set()}
        self.ports = ports._replace(
            store=Observed(ports.store, self._call, {"forget": "forget"}),
            admission=Observed(ports.admission, self._call, {"retire": "retire"}),
            effects=Observed(ports.effects, self._call, {"clean": "clean"}),
        )

    async def _call(self, point: str, function: Callable[..., Awaitable[Any]], records: Sequence[Record]) -> Any:
        identities = {record.identity for record in records}
        if point == "forget":
            for done, words in (("clean", "cleaned up"), ("retire", "retired")):
                if left := sorted(identities - self._done[done]):
                    raise WrongReportError(f"leak: the record of {left[0].id!r} is forgotten, and its message is not {words}")
        answer = await function(records)
        self._done.get(point, set()).update(identities)
        return answer


def problem_of(report: Any, log: BatchLog) -> str:
    """Return what is wrong with the report of a batch; empty if nothing is."""
    wanted = expected(log)
    wrong = [f"{wanted[name]} are {name} and {getattr(report, name)} are reported" for name in (*CLASSES, *PARTS)]
    found = [text for name, text in zip((*CLASSES, *PARTS), wrong, strict=True) if wanted[name] != getattr(report, name)]
    if not found and bool(report.trouble) != log.troubled:
        return "an error is reported, and none released a delivery" if report.trouble else "the error of a unit is not reported"
    return ", ".join(found)


def expected(log: BatchLog) -> Counter[str]:
    """Count what a report must say, from how each delivery ended."""
    counts: Counter[str] = Counter()
    for delivery in log.batch:
        logged, end = log.of(delivery), log.ends[delivery.receipt]
        if end in {DEAD, RETRIED}:
            counts[end] += 1
        elif end == FINISHED:
            counts["handled" if logged and logged.committed and logged.deliveries[0] is delivery else "known"] += 1
        else:
            counts.update(_released(delivery, log))
        counts["slot_not_ready"] += logged is not None and logged.waits_for_bucket
    for each in log.messages.values():
        counts["failed"] += each.failed
        if not each.committed and each.deliveries and log.ends[each.deliveries[0].receipt] == FINISHED:
            counts["dropped"] += not each.is_known
            counts["idle"] += each.is_known and not (each.record and (each.record.is_pending or each.record.issued))
    return counts


def _released(delivery: Delivery, log: BatchLog) -> list[str]:
    """Name the numbers that count a delivery which was released."""
    logged: LoggedMessage | None = log.of(delivery)
    cause = logged.cause if logged else None
    if log.is_other_body(delivery) or (logged and logged.postponed):
        return ["postponed"]
    if isinstance(cause, VersionConflict) or (logged and logged.fenced):
        return ["conflicted", "lost_race"]
    if isinstance(cause, ConflictError):
        return ["conflicted"]
    return ["unknown", "needs_upgrade"] if isinstance(cause, UpgradeRequired) else ["unknown"]


class WatchedSweep:
    """A sweep of tokens, and whether it keeps to its rules. `tokens` and `fence` are what it uses.

    It looks at all that a page lists. It reads a longer page only if the one before was full and nothing was swept or away.
    """

    def __init__(self, tokens: Any, fence: Any, endpoint: str) -> None:
        self._tokens, self._fence, self._endpoint = tokens, fence, endpoint
        self._left: list[Any] = []
        self._listed = self._limit = 0
        self._is_last = self._is_away = False
        self._swept = 0

    async def prepared(self, older_than: int, limit: int) -> Any:
        """Read a page; see the port. Raises WrongReportError."""
        self._require_whole_page()
        if self._is_last or self._swept or self._is_away:
            raise WrongReportError(
                "miscounted: a sweep reads one more page, and the last one was short, or something was swept or away"
            )
        if limit <= self._limit:
            raise WrongReportError(
                f"miscounted: a sweep reads a page of {limit} after one of {self._limit}, so it never sees the others"
            )
        self._limit = limit
        found = await self._tokens.prepared(older_than, limit)
        self._left = [each for each in found[self._listed :] if each.owner.endpoint == self._endpoint]
        self._listed, self._is_last = len(found), len(found) < limit
        return found

    async def discard(self, tokens: Sequence[Any]) -> None:
        try:
            await self._tokens.discard(tokens)
        except RetryableError:
            self._is_away = True
            raise
        self._swept += len(tokens)

    async def fence(self, unit: str, identity: Any, message: Any = None) -> Any:
        """Fence the owner of a token; see the port."""
        if self._left:
            self._left.pop(0)
        try:
            return await self._fence.fence(unit, identity, message)
        except (CommitRefused, UpgradeRequired):
            raise
        except RetryableError:
            self._is_away = True
            raise

    async def run(self, sweep: Coroutine[Any, Any, int]) -> None:
        """Run the sweep. Raises WrongReportError, and what the sweep may raise."""
        try:
            swept = await sweep
        except RetryableError as error:
            if self._swept:
                raise WrongReportError(f"miscounted: a sweep raised {error!r}, and {self._swept} were swept") from error
            self._require_whole_page()
            raise
        except OnceOnlyError as error:
            raise WrongReportError(f"miscounted: a sweep raised {error!r}, which is none of its errors") from error
        self._require_whole_page()
        if swept != self._swept or (self._is_away and not swept):
            raise WrongReportError(f"miscounted: a sweep reports {swept}, and {self._swept} were swept")

    def _require_whole_page(self) -> None:
        if self._left:
            raise WrongReportError(f"miscounted: a sweep has not looked at {len(self._left)} of the tokens that a page listed")
