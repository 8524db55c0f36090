"""Requests for many documents: how changes are split into requests, how many run at a time, and the one outcome of all.

The rule for that outcome is here and nowhere else. Only what the service said for sure is definite, so a call over many
documents raises CommitFailed only when every request that failed was refused for sure and no document was written. In every
other case at least one document may have been written, and the call raises OutcomeUnknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias, TypeVar

from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown
from onceonly.ports.documents import Change, Version

Outcome: TypeAlias = Version | OnceOnlyError | None
"""What became of one change: its new version, None when it was refused by its version, or what went wrong."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def split(
    changes: Iterable[Change], *, most: int, size: int, size_of: Callable[[Change], int] | None = None
) -> Iterator[list[Change]]:
    """Divide changes into requests of at most `most` changes and `size` bytes; a larger change is a request of its own.

    `size_of` returns the bytes that a change takes in a request. By default that is the length of its body.
    """
    measure = size_of or _body_size
    request: list[Change] = []
    filled = 0
    for change in changes:
        more = measure(change)
        if request and (len(request) == most or filled + more > size):
            yield request
            request, filled = [], 0
        request.append(change)
        filled += more
    if request:
        yield request


async def read_all(items: Sequence[_Item], read: Callable[[_Item], Awaitable[_Answer]], *, at_once: int) -> list[_Answer]:
    """Read each item, at most `at_once` at a time; returns the answers in order.

    After the first error no further read begins. Raises that error when the reads under way have ended.
    """
    answers, errors = await _run(items, read, at_once)
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]


async def write_all(
    changes: Sequence[Change], write: Callable[[Change], Awaitable[Version | None]], *, at_once: int
) -> tuple[Version | None, ...]:
    """Write each change by a request of its own; see `write_requests`."""

    async def send(request: Sequence[Change]) -> Sequence[Outcome]:
        return [await write(request[0])]

    return await write_requests(changes, [[change] for change in changes], send, at_once=at_once)


async def write_requests(
    changes: Sequence[Change],
    requests: Sequence[Sequence[Change]],
    send: Callable[[Sequence[Change]], Awaitable[Sequence[Outcome]]],
    *,
    at_once: int,
) -> tuple[Version | None, ...]:
    """Send requests that together hold `changes`, at most `at_once` at a time; returns the answers in the order of `changes`.

    `send` returns an outcome for each change of its request, or raises an error that holds for all of them. After the first
    error no further request is sent. Raises the error of `combined` when the requests under way have ended.
    """
    answers, errors = await _run(requests, send, at_once)
    outcomes: dict[str, Outcome] = {}
    for number, answered in answers.items():
        outcomes.update(zip((change.key for change in requests[number]), answered, strict=True))
    return combined([*(outcomes.get(change.key) for change in changes), *errors])


def combined(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Return the outcomes when none is an error.

    Raises CommitRefused or else CommitFailed when no change was written for sure, CommitRefused first, because the same call
    can never succeed then. Raises OutcomeUnknown in every other case, also for errors of other families.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, OnceOnlyError)]
    if errors:
        _raise(errors, written=sum(isinstance(outcome, str) for outcome in outcomes))
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, OnceOnlyError))


def _raise(errors: Sequence[OnceOnlyError], *, written: int) -> NoReturn:
    doubtful = next((error for error in errors if not isinstance(error, CommitFailed)), None)
    if isinstance(doubtful, OutcomeUnknown):
        raise doubtful
    if doubtful is not None:
        raise OutcomeUnknown(str(doubtful)) from doubtful
    if written:
        raise OutcomeUnknown(f"{written} documents were written before this error: {errors[0]}") from errors[0]
    raise next((error for error in errors if isinstance(error, CommitRefused)), errors[0])


async def _run(
    items: Sequence[_Item], work: Callable[[_Item], Awaitable[_Answer]], at_once: int
) -> tuple[dict[int, _Answer], list[OnceOnlyError]]:
    answers: dict[int, _Answer] = {}
    errors: list[OnceOnlyError] = []
    left = iter(enumerate(items))

    async def work_on() -> None:
        for number, item in left:
            try:
                answers[number] = await work(item)
            except OnceOnlyError as error:
                errors.append(error)
            if errors:
                return

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, len(items))):
            workers.create_task(work_on())
    return answers, errors


def _body_size(change: Change) -> int:
    return len(change.body or b"")
