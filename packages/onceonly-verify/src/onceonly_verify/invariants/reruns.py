"""Which messages of a batch may be in another unit after their last one, and in which: by the error that ended it."""

from collections.abc import Callable, Sequence
from enum import Enum

from onceonly.model.errors import (
    CommitRefused,
    ConflictError,
    HandlerAbandoned,
    HandlerFailed,
    LockTimeout,
    PeerAway,
    RetryableError,
    StoreUnavailable,
    UpgradeRequired,
    VersionConflict,
)
from onceonly.model.identity import Identity
from onceonly.model.message import FailureKind, Message
from onceonly_verify.invariants.logged import LoggedMessage, WrongReportError

NOT_JUDGED = (CommitRefused, HandlerFailed, LockTimeout, HandlerAbandoned, PeerAway, VersionConflict, UpgradeRequired)
"""The errors of a unit of one after which it is not asked whether the unit is committed without its handler."""


class Next(Enum):
    """In which further unit a message may be."""

    ANY = "any"
    ALONE = "a unit of one"
    NONE = "none"


class Reruns:
    """The rules for the units of one batch after the first. A unit that breaks one raises WrongReportError."""

    def __init__(self, key: Callable[[Message], str]) -> None:
        """Begin without units; `key` gives what the messages of a unit have in common."""
        self._key = key
        self._next: dict[Identity, Next] = {}
        self._same: list[LoggedMessage] = []
        """What the next unit must contain, because a handler or a commit of several failed."""
        self._away: dict[Identity, str] = {}
        """The keys of the messages that are not known to be committed, because a system did not answer."""
        self._half: dict[Identity, str] = {}
        """The halves that a message was in, "0" or "1" for each time that its unit was halved."""
        self._unjudged: LoggedMessage | None = None
        """The message whose unit of one failed, if the same unit must be tried without its handler."""
        self._judgeable: Message | None = None
        """The message whose unit of one failed, if the same unit may be tried without its handler."""
        self._has_committed = self._has_halved = self._is_behind = False
        """Whether a unit was committed, whether one was tried in halves, and whether the last one ran behind others."""

    def restart(self) -> None:
        """Note that a message runs alone now, or has run: what other units showed does not matter to it."""
        self._away.clear()
        self._has_committed = self._has_halved = False

    def committed(self) -> None:
        """Note that a unit was committed: the store can write."""
        self._has_committed = True

    def begins(self, unit: Sequence[LoggedMessage]) -> None:
        """Check who is in a unit."""
        self.judged()
        names = ", ".join(logged.message.id for logged in unit)
        again = [logged for logged in unit if logged.decision is None]  # others go through their unit to be given up
        if self._same and [*unit] != self._same:
            raise WrongReportError(f"wrong unit: the last one failed and is not repeated as it was, but with {names}")
        for logged in again:
            step = self._next.get(logged.message.identity, Next.ANY)
            if step is Next.NONE:
                raise WrongReportError(
                    f"wrong unit: {logged.message.id!r} runs again, and nothing in its last unit asks for that"
                )
            if step is Next.ALONE and len(unit) > 1:
                raise WrongReportError(f"wrong unit: one of {names} failed the last one, and is in one of several again")
            is_behind = step is Next.ALONE or logged.blamed
            if is_behind and not logged.is_started and self._shows_outage(logged):
                raise WrongReportError(f"wrong unit: {logged.message.id!r} runs by itself, and an earlier unit shows an outage")
        self._is_behind = any(each.blamed or self._next.get(each.message.identity) is Next.ALONE for each in unit)
        self._judgeable = None
        self._same = []
        self._next |= dict.fromkeys((logged.message.identity for logged in unit), Next.NONE)

    def failed(self, logged: LoggedMessage, error: HandlerFailed) -> None:
        """Note a handler that failed in an isolated unit, which goes on."""
        is_unknown = error.failure.kind is FailureKind.UNKNOWN
        self._next[logged.message.identity] = Next.ALONE if is_unknown else Next.NONE

    def ended(self, unit: Sequence[LoggedMessage], error: Exception, logged: LoggedMessage | None, *, isolated: bool) -> None:
        """Note that an error ended a unit: the error of the commit, or of what was done for `logged`."""
        steps = dict.fromkeys((each.message.identity for each in unit), Next.NONE)
        if len(unit) == 1:
            self._expect_unit_without_handlers(error, logged)
        elif isinstance(error, PeerAway):
            steps = {each.message.identity: Next.ANY if each.away is None else Next.NONE for each in unit}
        elif isinstance(error, HandlerFailed | CommitRefused) or (isinstance(error, LockTimeout) and not isolated):
            steps = dict.fromkeys(steps, Next.ANY)
            self._same = [] if isolated else [*unit]
            if isolated:
                self._halved(unit)
        elif logged and not isinstance(error, LockTimeout | VersionConflict | UpgradeRequired):
            others = Next.NONE if isinstance(error, ConflictError) else Next.ANY
            steps = dict.fromkeys(steps, others)
            steps[logged.message.identity] = Next.NONE if isinstance(error, HandlerAbandoned) else Next.ALONE
        self._next |= steps
        if isinstance(error, RetryableError) and not isinstance(error, CommitRefused | HandlerAbandoned | PeerAway):
            # one that is given up goes through a unit of its own, which no other message of the batch waits for
            none = [each for each in unit if steps[each.message.identity] is Next.NONE and each.decision is None]
            self._away |= {each.message.identity: self._key(each.message) for each in none}

    def _halved(self, unit: Sequence[LoggedMessage]) -> None:
        self._has_halved = True
        for number, each in enumerate(unit):
            identity = each.message.identity
            self._half[identity] = self._half.get(identity, "") + ("0" if number < len(unit) // 2 else "1")

    def _shows_outage(self, logged: LoggedMessage) -> bool:
        """Report whether an earlier unit met an outage that matters to a message. One that failed before runs behind all."""
        half = "" if logged.blamed else self._half.get(logged.message.identity, "")
        away = {self._half.get(identity, "") for identity, key in self._away.items() if key == self._key(logged.message)}
        return any(half.startswith(other) or other.startswith(half) for other in away)

    def _expect_unit_without_handlers(self, error: Exception, logged: LoggedMessage | None) -> None:
        self._judgeable = self._unjudged = None  # a second error, of what cleans up after the first, takes its place
        if logged is None or isinstance(error, NOT_JUDGED) or self._key(logged.message):
            return
        if self._has_committed or not isinstance(error, StoreUnavailable):
            self._judgeable = logged.message
        if (self._has_committed and self._is_behind and not self._has_halved) or not isinstance(error, StoreUnavailable):
            self._unjudged = logged

    def looks(self, messages: Sequence[Message]) -> None:
        """Check that a unit without handlers is of use."""
        if [*messages] != [self._judgeable]:
            names = ", ".join(message.id for message in messages)
            raise WrongReportError(f"unfair: a unit with {names} begins without handlers, and nothing asks for it")
        self._judgeable = self._unjudged = None

    def left(self, logged: LoggedMessage) -> None:
        """Check that a message is not released that must first run by itself: its handler was running when its unit ended."""
        is_next = self._next.get(logged.message.identity) is Next.ALONE and logged.decision is None
        if is_next and not self._shows_outage(logged):
            raise WrongReportError(
                f"wrong unit: {logged.message.id!r} ended its last unit, and is released without a run by itself"
            )

    def blamed(self, message: Message) -> None:
        """Note that a unit fails because of its message: this is no outage."""
        self._away.pop(message.identity, None)

    def judged(self) -> None:
        """Check that the last unit of one was tried without its handler, if it must be."""
        if self._unjudged:
            name = self._unjudged.message.id
            raise WrongReportError(f"unfair: the unit of {name!r} failed, and it was not tried without its handler")
