"""Many requests for one document each: so many at once, and the one outcome that all of them have together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from onceonly.model.errors import CommitRefused, Failed, TryAgain, Unknown

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


async def read_all(items: Sequence[_Item], read: Callable[[_Item], Awaitable[_Answer]], *, at_once: int) -> list[_Answer]:
    """Read each of these, at most `at_once` at a time; gives the answers in order.

    After the first error no further one is begun. Raises that error, when those under way have ended.
    """
    answers, errors = await _all_of(items, read, at_once)
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]


async def write_all(
    items: Sequence[_Item], write: Callable[[_Item], Awaitable[str | None]], *, at_once: int
) -> tuple[str | None, ...]:
    """Write each of these, at most `at_once` at a time; gives the answers in order, None for one that was refused.

    After the first error no further one is begun. Raises that error as it is when none was written; Unknown when one may have
    been written, or was: "nothing happened" would be wrong then.
    """

    async def write_one(items: Sequence[_Item]) -> Sequence[str | None]:
        return [await write(items[0])]

    return await write_batches([[item] for item in items], write_one, at_once=at_once)


async def write_batches(
    batches: Sequence[Sequence[_Item]],
    write: Callable[[Sequence[_Item]], Awaitable[Sequence[str | TryAgain | None]]],
    *,
    at_once: int,
) -> tuple[str | None, ...]:
    """Do what `write_all` does with a request for each batch; its answers may be errors of single items."""
    answers, errors = await _all_of(batches, write, at_once)
    outcomes = [outcome for number in sorted(answers) for outcome in answers[number]]
    errors += [outcome for outcome in outcomes if isinstance(outcome, TryAgain)]
    if errors:
        written = sum(isinstance(outcome, str) for outcome in outcomes)
        raise _together(errors, written, sum(map(len, batches)))
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, TryAgain))


def _together(errors: Sequence[TryAgain], written: int, total: int) -> TryAgain:
    doubtful = next((error for error in errors if not isinstance(error, Failed)), None)
    if doubtful is not None:
        return doubtful
    if written:
        error = Unknown(f"{written} of {total} were written before this: {errors[0]}")
        error.__cause__ = errors[0]
        return error
    return next((error for error in errors if isinstance(error, CommitRefused)), errors[0])


async def _all_of(
    items: Sequence[_Item], work: Callable[[_Item], Awaitable[_Answer]], at_once: int
) -> tuple[dict[int, _Answer], list[TryAgain]]:
    answers: dict[int, _Answer] = {}
    errors: list[TryAgain] = []
    left = iter(enumerate(items))

    async def work_on() -> None:
        for number, item in left:
            try:
                answers[number] = await work(item)
            except TryAgain as error:
                errors.append(error)
            if errors:
                return

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, len(items))):
            workers.create_task(work_on())
    return answers, errors
