"""The retry policy: pure arithmetic over how often a message failed. Time and chance are arguments."""

import math
import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from onceonly.model.message import Failure, FailureKind

HISTORY_KEPT = 10
SURE = 5
"""How many equal failures in a row make one UNKNOWN failure the message's own."""
BLAMED = "its unit fails with this message and is committed without its handler"
"""How the reason of an UNKNOWN failure begins."""
_LOCKED_FIRST_SECONDS, _LOCKED_MOST_SECONDS = 0.25, 8.0
_LOCKED_KEPT = 6
_COMPARED = 150
UNHANDLED = "no handler of endpoint "
"""How the reason of a LATER failure begins if no handler of a process takes the message's type."""
AWAY = "the service that it asked is away"
"""How the reason of a LATER failure begins if the peer that a message follows up does not answer."""
UNCOUNTED = frozenset({FailureKind.LOCKED, FailureKind.UNKNOWN})
"""What may be no fault of the message: it is put off, and UNKNOWN counts when it repeats."""


class Retry(Struct, frozen=True, kw_only=True):
    """When a failed message is retried, and when it is given up.

    The first `immediate` retries follow at once. Then there are `delayed` retries with growing delays. The first delay is
    `first_delay` seconds. Each further one is `factor` times as long, up to `max_delay`. `jitter` is a fraction from 0 to 1:
    each delay is lengthened at random by up to that fraction. After the last retry the message is a dead letter.
    """

    immediate: int = 2
    delayed: int = 5
    first_delay: float = 2.0
    factor: float = 4.0
    max_delay: float = 3600.0
    jitter: float = 0.2

    def problems(self) -> tuple[str, ...]:
        """List the problems of these numbers. Empty if there are none."""
        if wrong := [f"Retry: {each}" for each in self._not_numbers()]:
            return tuple(wrong)
        rules = (
            (self.immediate >= 0 and self.delayed >= 0, "immediate and delayed must be 0 or more"),
            (self.first_delay > 0 and self.max_delay >= self.first_delay, "0 < first_delay <= max_delay"),
            (self.factor >= 1, "factor must be 1 or more"),
            (0 <= self.jitter <= 1, "jitter must be between 0 and 1"),
        )
        return tuple(f"Retry: {rule}" for holds, rule in rules if not holds)

    def _not_numbers(self) -> Iterator[str]:
        for name in self.__struct_fields__:
            value, whole = getattr(self, name), name in ("immediate", "delayed")
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                yield f"{name} must be {'a number of retries, such as 5' if whole else 'a number'}, not {value!r:.100}"

    def delay_after(self, attempts: int, fraction: float) -> float | None:
        """Return the seconds to wait after this number of failures, or None to give the message up.

        `fraction` is a number in [0, 1) that spreads the delays of messages that failed together.
        """
        if attempts <= self.immediate:
            return 0.0
        if attempts > self.immediate + self.delayed:
            return None
        grown = self.first_delay * self.factor ** min(attempts - self.immediate - 1, self._growing())
        return float(min(grown, self.max_delay) * (1 + self.jitter * fraction))

    def longest_delays(self) -> float:
        """Return the sum of all delays in seconds, each with its greatest jitter."""
        growing = min(self.delayed, self._growing())
        grown = self.first_delay * (growing if self.factor == 1 else (self.factor**growing - 1) / (self.factor - 1))
        return (grown + (self.delayed - growing) * self.max_delay) * (1 + self.jitter)

    def _growing(self) -> int:
        """Return after how many delays they have grown to `max_delay`."""
        if self.factor == 1:
            return self.delayed
        return math.ceil(math.log(self.max_delay / self.first_delay) / math.log(self.factor))


class RetryDecision(Struct, frozen=True, kw_only=True):
    """What happens to a message that failed: again at `due` (milliseconds since 1970), or a dead letter."""

    give_up: bool
    due: int
    attempts: int
    history: tuple[Failure, ...]


def decide_retry(
    policy: Retry, failure: Failure, *, attempts: int, history: tuple[Failure, ...], now: int, fraction: float
) -> RetryDecision:
    """Decide about a message that failed once more. `attempts` and `history` are those before this failure."""
    stamped = replace(failure, at=now)
    if failure.kind in UNCOUNTED:
        return _decide_uncounted(policy, stamped, attempts=attempts, history=history, fraction=fraction)
    if failure.kind is FailureKind.LATER:
        if failure.reason.startswith(UNHANDLED):
            history = _with_first(history, stamped)
        return RetryDecision(give_up=False, due=now + int(failure.delay * 1000), attempts=attempts, history=history)
    delay = None if failure.kind is FailureKind.REJECTED else policy.delay_after(attempts + 1, fraction)
    return RetryDecision(
        give_up=delay is None,
        due=0 if not delay else now + int(delay * 1000),
        attempts=attempts + 1,
        history=(*history, stamped)[-HISTORY_KEPT:],
    )


def is_blamed(history: tuple[Failure, ...]) -> bool:
    """Return whether the last failure was UNKNOWN and is not counted yet."""
    return bool(history) and history[-1].kind is FailureKind.LATER and history[-1].reason.startswith(BLAMED)


def is_away(history: tuple[Failure, ...]) -> bool:
    """Return whether a message waits for a peer that does not answer, as far as its history shows."""
    return bool(history) and history[-1].kind is FailureKind.LATER and history[-1].reason.startswith(AWAY)


def unhandled_since(history: tuple[Failure, ...]) -> int:
    """Return when the message first came to a process without a handler for its type, in milliseconds since 1970, or 0."""
    return next((each.at for each in history if _is_unhandled(each)), 0)


def is_unhandled(history: tuple[Failure, ...]) -> bool:
    """Return whether a message waits for a process with a handler for its type, as far as its history shows."""
    return bool(history) and _is_unhandled(history[-1])


def _is_unhandled(failure: Failure) -> bool:
    return failure.kind is FailureKind.LATER and failure.reason.startswith(UNHANDLED)


def _with_first(history: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    """Keep the time at which a message first came to a process without a handler for its type, before all failures."""
    if unhandled_since(history):
        return history
    return (replace(failure, delay=0), *history[1 - HISTORY_KEPT :])


def _decide_uncounted(
    policy: Retry, failure: Failure, *, attempts: int, history: tuple[Failure, ...], fraction: float
) -> RetryDecision:
    """Put a message off that failed perhaps through no fault of its own; count an UNKNOWN failure that repeats itself.

    The history holds these failures as LATER, behind those that were counted.
    """
    counted = _counted(history)
    times = _equal(history[len(counted) :], failure.reason) + 1
    if failure.kind is FailureKind.UNKNOWN and times >= SURE:
        own = replace(failure, kind=FailureKind.COMMIT)
        return decide_retry(policy, own, attempts=attempts, history=counted, now=failure.at, fraction=fraction)
    if failure.kind is FailureKind.UNKNOWN:
        delay = 0.0 if times < SURE - 2 else 2.0 ** (times - SURE + 2)
    else:
        delay = min(_LOCKED_FIRST_SECONDS * 2.0 ** (times - 1), _LOCKED_MOST_SECONDS) * (1 + policy.jitter * fraction)
    later = history[len(history) - times + 1 :][-_LOCKED_KEPT:]
    return RetryDecision(
        give_up=False,
        due=0 if not delay else failure.at + int(delay * 1000),
        attempts=attempts,
        history=(*counted[-HISTORY_KEPT:], *later, replace(failure, kind=FailureKind.LATER)),
    )


def _counted(history: tuple[Failure, ...]) -> tuple[Failure, ...]:
    left = len(history)
    while left and history[left - 1].kind is FailureKind.LATER:
        left -= 1
    return history[:left]


def _equal(failures: tuple[Failure, ...], reason: str) -> int:
    """Count how many of the last failures had this reason; the numbers in it do not matter."""
    times = 0
    for failure in reversed(failures):
        if _comparable(failure.reason) != _comparable(reason):
            break
        times += 1
    return times


def _comparable(reason: str) -> str:
    """Return what copies keep of a reason, without its numbers: processes, ports and addresses differ from time to time."""
    return re.sub(r"(?:0x)?[0-9]+", "#", reason[:_COMPARED])
