"""Crash points: every place where a process can die, by name, and what comes of it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

from onceonly.model.errors import SetupError
from onceonly.runtime.observe.observer import Point, PortCall

_UNTOUCHED = "the lease ends, and the message comes again as a suspect; counted only if its handler was running"
_PENDING = "the message comes again; the claim answers 'pending', and only its effects are dispatched"
_RESENT = "the message comes again; the same ids are sent again, and their receivers know them"
_DONE = "the message comes again; the claim answers 'done', and it is only acknowledged"

CRASH_POINTS: Mapping[str, str] = MappingProxyType(
    {
        "before-receive": "nothing was taken; the messages wait for another worker",
        "after-receive": f"nothing was done: {_UNTOUCHED}",
        "before-begin": f"nothing was done: {_UNTOUCHED}",
        "after-begin": f"the open unit and its claims vanish: {_UNTOUCHED}",
        "before-admits": f"the open unit and its claims vanish: {_UNTOUCHED}",
        "after-admits": f"the open unit and its claims vanish: {_UNTOUCHED}",
        "before-handle": f"the open unit and its claims vanish: {_UNTOUCHED}",
        "after-handle": f"what the handler changed and captured vanishes with the unit: {_UNTOUCHED}",
        "before-prepare": f"what the handler changed and captured vanishes with the unit: {_UNTOUCHED}",
        "after-prepare": f"what was prepared stays invisible, the unit vanishes: {_UNTOUCHED}",
        "before-commit": f"what the handler changed and captured vanishes with the unit: {_UNTOUCHED}",
        "after-commit": f"committed, nothing sent: {_PENDING}",
        "before-activate": f"committed, nothing sent: {_PENDING}",
        "after-activate": f"committed, nothing sent: {_PENDING}",
        "before-dispatch": f"committed, nothing sent: {_PENDING}",
        "after-dispatch": f"sent, the record is still there: {_RESENT}",
        "before-retire": f"sent, the record is still there: {_RESENT}",
        "after-retire": f"sent, the record is still there: {_RESENT}",
        "before-forget": f"sent, the record is still there: {_RESENT}",
        "after-forget": f"sent, the record is gone: {_DONE}",
        "before-ack": f"everything is done but the acknowledgement: {_DONE}",
        "after-ack": "everything is done; the message does not come again",
        "before-release": "nothing happened; the lease ends, and the message comes again",
        "after-release": "nothing happened; the message comes again, not suspected",
        "before-retry-copy": "the failure is not counted yet; the lease ends, and the message comes again as a suspect",
        "after-retry-copy": "the copy was taken, the original not acknowledged: both come, one claim, handled once",
        "before-dead-letter": "the letter is not stored; the lease ends, the message comes again, and is judged again",
        "after-dead-letter": "stored, not acknowledged: the message comes again, and the letter is stored once",
    }
)
"""Every crash point, in the order in which a message reaches them, with the effect of a crash there."""

_KNOWN = frozenset(f"{side}-{point}" for side in ("before", "after") for point in Point)


class ProcessCrash(BaseException):
    """This process is taken to be dead. No `Exception`: like a real crash, nothing in between may handle it."""


class CrashAt:
    """An observer that dies at one crash point, when it is reached for the `after_times`-th time, and then never again.

    Raises SetupError for a crash point that does not exist.
    """

    def __init__(self, point: str, after_times: int = 1) -> None:
        if point not in _KNOWN:
            raise SetupError(f"unknown crash point {point!r}: use one of {', '.join(CRASH_POINTS)}")
        self._point = point
        self._left = after_times
        self.reached: list[str] = []
        """The crash points that were reached, each once, in order."""

    @property
    def crashed(self) -> bool:
        return self._left <= 0

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        self._reach(f"before-{call.point}")
        yield
        self._reach(f"after-{call.point}")

    def _reach(self, point: str) -> None:
        if point in CRASH_POINTS and point not in self.reached:
            self.reached.append(point)
        if point == self._point and self._left > 0:
            self._left -= 1
            if self._left == 0:
                raise ProcessCrash(point)


class EveryCrashPoint(str):
    """One of all crash points, from the fixture `onceonly_crash_point`. A run that does not reach it is skipped."""

    __slots__ = ()
