"""Reads and writes of many documents: several requests at a time, with one outcome for all of them.

`Documents.load` and `Documents.save` take many keys or changes, and most services need several requests for them. These
functions send the requests and decide the outcome of the call. It raises CommitFailed only if the service refused every request
that failed, and no document was written. In every other case a document may have been written, and it raises OutcomeUnknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias, TypeVar

from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown
from onceonly.model.wording import counted
from onceonly.ports.documents import Change, Version

__all__ = ["Outcome", "read_all", "split", "write_all", "write_requests"]

Outcome: TypeAlias = Version | OnceOnlyError | None
"""The outcome of one change: its new version, None if the stored version was not the expected one, or an error."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def split(
    changes: Iterable[Change], *, most: int, size: int, size_of: Callable[[Change], int] | None = None
) -> Iterator[list[Change]]:
    """Divide changes into requests of at most `most` changes and `size` bytes, in order.

    A change that is larger than `size` is a request of its own. `size_of` returns the bytes that a change takes in a request.
    The default is the length of its body.
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
    """Call `read` for each item, at most `at_once` at a time. Returns the answers in the order of the items.

    No read begins after the first OnceOnlyError. That error is raised when the reads in progress have ended.
    """
    answers, errors = await _run(items, read, at_once)
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]


async def write_all(
    changes: Sequence[Change], write: Callable[[Change], Awaitable[Version | None]], *, at_once: int
) -> tuple[Version | None, ...]:
    """Call `write` for each change, at most `at_once` at a time. `write` returns what `Documents.save` returns for a change.

    Otherwise as `write_requests`.
    """

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
    """Call `send` for each request, at most `at_once` at a time. Returns the answers in the order of `changes`.

    `requests` are the same changes as `split` divides them. `send` returns an outcome for each change of its request, or raises
    a OnceOnlyError that holds for all of them. No request is sent after the first error.

    Raises when the requests in progress have ended: CommitRefused or CommitFailed if no document was written for sure,
    OutcomeUnknown otherwise. CommitRefused takes precedence over CommitFailed, because the same call can never succeed.
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
        raise OutcomeUnknown(f"{counted(written, 'document')} written before this error: {errors[0]}") from errors[0]
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
