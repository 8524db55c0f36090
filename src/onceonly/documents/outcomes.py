"""Many writes, each a request of its own: a few at a time, and one answer for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from onceonly.model.errors import Failed, OnceOnlyError, Unknown
from onceonly.ports.documents import Change, Version

_Given = TypeVar("_Given")
_Answer = TypeVar("_Answer")


def parts(changes: Sequence[Change], most: int, size: int) -> Iterator[list[Change]]:
    """Divide changes into requests of at most this many, and this many bytes of bodies where there is more than one."""
    part: list[Change] = []
    filled = 0
    for change in changes:
        more = len(change.body or b"")
        if part and (len(part) == most or filled + more > size):
            yield part
            part, filled = [], 0
        part.append(change)
        filled += more
    if part:
        yield part


async def each(call: Callable[[_Given], Awaitable[_Answer]], given: Iterable[_Given], *, at_once: int) -> list[_Answer]:
    """Call for each, so many at once; gives the answers in order. All have ended before an error is raised."""
    free = asyncio.Semaphore(at_once)

    async def one(item: _Given) -> _Answer:
        async with free:
            return await call(item)

    answers = await asyncio.gather(*map(one, given), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def outcome(call: Awaitable[Version | None]) -> Version | OnceOnlyError | None:
    """Give what became of one write, also when it failed."""
    try:
        return await call
    except OnceOnlyError as error:
        return error


def combined(outcomes: Sequence[Version | OnceOnlyError | None]) -> tuple[Version | None, ...]:
    """Give the answers of all; raises Failed when it is certain that none was written, otherwise Unknown, if one failed."""
    errors = [each for each in outcomes if isinstance(each, OnceOnlyError)]
    if not errors:
        return tuple(each for each in outcomes if not isinstance(each, OnceOnlyError))
    is_certain = all(isinstance(error, Failed) for error in errors)
    if is_certain and not any(isinstance(each, str) for each in outcomes):
        raise errors[0]
    worst = next((error for error in errors if not isinstance(error, Failed)), errors[0])
    raise Unknown(str(worst)) from worst
