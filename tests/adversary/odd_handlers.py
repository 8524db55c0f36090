"""Handlers that do every odd thing, in an endpoint of their own: `onceonly run tests.adversary.odd_handlers:shop`.

A message of the type `Odd` says which one it wants. Each writes its row first, so that what is rolled back shows.
"""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NoReturn

from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import CommitFailed, ConflictError, Context, OutcomeUnknown, Reject, RetryableError
from tests.adversary.program import Done, effects, shop, work

__all__ = ["EITHER", "HANDLED_ODDLY", "HOSTILE", "shop"]

Odd = Callable[[AsyncSession, Context], Awaitable[Any]]
HOSTILE: dict[str, Odd] = {}
"""What cannot succeed: each must become a dead letter."""
HANDLED_ODDLY: dict[str, Odd] = {}
"""What is odd, and no reason to give a message up: each must be handled once."""
EITHER: dict[str, Odd] = {}
"""What may be taken for a failure: each must be handled once, or become a dead letter."""


class Unspeakable(Exception):
    """An error that fails when it is asked what it is."""

    def __str__(self) -> str:
        raise ValueError("an error while an error is described")

    __repr__ = __str__


class Silent(BaseException):
    """An exception of the user's outside of Exception."""


def hostile(odd: Odd) -> Odd:
    """Keep a handler that must fail."""
    HOSTILE[odd.__name__] = odd
    return odd


def harmless(odd: Odd) -> Odd:
    """Keep a handler that must succeed."""
    HANDLED_ODDLY[odd.__name__] = odd
    return odd


def _raising(name: str, make: Callable[[], BaseException]) -> None:
    async def odd(_session: AsyncSession, _context: Context) -> NoReturn:
        raise make()

    odd.__name__ = f"raises {name}"
    hostile(odd)


def _circular() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _chained() -> BaseException:
    last = ValueError("0")
    for number in range(2000):
        error = ValueError(str(number))
        error.__context__, last = last, error
    return last


def _nested_group() -> BaseException:
    group: Exception = ValueError("inside")
    for _ in range(500):
        group = ExceptionGroup("nested", [group])
    return group


for _name, _make in {
    "BaseException": lambda: BaseException("base"),
    "a BaseException of one's own": lambda: Silent("silent"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "SystemExit(0)": lambda: SystemExit(0),
    "CancelledError": lambda: asyncio.CancelledError("mine"),
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "NotImplementedError": NotImplementedError,
    "ExceptionGroup": lambda: ExceptionGroup("group", [ValueError("a"), KeyError("b")]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("group", [KeyboardInterrupt(), ValueError("b")]),
    "ExceptionGroup nested 500 deep": _nested_group,
    "what cannot be described": Unspeakable,
    "a text of 10 MB": lambda: ValueError("x" * 10_000_000),
    "lone surrogates": lambda: ValueError("\ud800\udfff"),
    "controls and NUL": lambda: ValueError("\x1b[2J\0\x7f\x9b\u202e"),
    "bytes": lambda: ValueError(b"\xff\xfe"),
    "a cause that is its own cause": _circular,
    "a chain of 2,000": _chained,
    "ConnectionResetError": ConnectionResetError,
    "BrokenPipeError": BrokenPipeError,
    "OSError: no space": lambda: OSError(28, "No space left on device"),
    "an error of SQLAlchemy's": lambda: IntegrityError("INSERT", {}, ValueError("made up")),
    "an outage of SQLAlchemy's": lambda: OperationalError("SELECT", {}, ConnectionResetError("made up")),
    "Reject": lambda: Reject("no \x1b thanks"),
    "Conflict of the library": lambda: ConflictError("made up"),
    "Failed of the library": lambda: CommitFailed("made up"),
    "Unknown of the library": lambda: OutcomeUnknown("made up"),
    "TryAgain of the library": lambda: RetryableError("made up"),
}.items():
    _raising(_name, _make)


@hostile
async def recurses_for_ever(session: AsyncSession, context: Context) -> None:
    """Call itself until Python refuses."""
    await recurses_for_ever(session, context)


@hostile
async def cancels_its_own_task(_session: AsyncSession, _context: Context) -> None:
    """Cancel the task it runs in, and wait for it."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel("mine")
    await asyncio.sleep(3600)


@hostile
async def cancels_its_own_task_and_fails(_session: AsyncSession, _context: Context) -> None:
    """Cancel, then raise something else."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise ValueError("after a cancellation")


@hostile
async def swallows_cancellation(_session: AsyncSession, _context: Context) -> None:
    """Take no notice of the time-out."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@hostile
async def takes_too_long(_session: AsyncSession, _context: Context) -> None:
    """Wait for longer than the time-out."""
    await asyncio.sleep(3600)


@hostile
async def blocks_the_loop(_session: AsyncSession, _context: Context) -> None:
    """Let nothing else run in its process."""
    time.sleep(3600)  # noqa: ASYNC251 - that is the point


@hostile
async def spins(_session: AsyncSession, _context: Context) -> None:
    """The same, with the processor busy."""
    while True:
        pass


@hostile
async def stops_the_loop(_session: AsyncSession, _context: Context) -> None:
    """Stop the event loop, and wait."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(3600)


@hostile
async def closes_the_loop(_session: AsyncSession, _context: Context) -> None:
    """Close the event loop, which refuses while it runs."""
    asyncio.get_running_loop().close()


@hostile
async def commits(session: AsyncSession, _context: Context) -> None:
    """Commit what is not its own to commit."""
    await session.commit()


@hostile
async def rolls_back_by_sql(session: AsyncSession, _context: Context) -> None:
    """End the transaction under the library."""
    await session.execute(text("ROLLBACK"))


@hostile
async def begins(session: AsyncSession, _context: Context) -> None:
    """Begin a transaction in the transaction."""
    await session.begin()


@hostile
async def leaves_the_transaction_aborted(session: AsyncSession, _context: Context) -> None:
    """Swallow an error of SQL's."""
    with suppress(Exception):
        await session.execute(text("SELECT 1 / 0"))


@hostile
async def divides_by_zero_in_sql(session: AsyncSession, _context: Context) -> None:
    """Let the database refuse it."""
    await session.execute(text("SELECT 1 / 0"))


@hostile
async def sends_what_cannot_be_written(_session: AsyncSession, context: Context) -> None:
    """Publish an object without a form."""
    context.publish(object())


@hostile
async def sends_lone_surrogates(_session: AsyncSession, context: Context) -> None:
    """Publish a text that is no UTF-8."""
    context.publish(Done("\ud800"))


@hostile
async def sends_ten_megabytes(_session: AsyncSession, context: Context) -> None:
    """Publish more than the transport takes."""
    context.publish(Done("x" * 300_000_000))


@hostile
async def sends_to_a_wrong_name(_session: AsyncSession, context: Context) -> None:
    """Send to what is no endpoint's name."""
    context.send(Done("x"), to="no endpoint!\x1b")


@hostile
async def sends_into_the_past(_session: AsyncSession, context: Context) -> None:
    """Ask for a negative delay."""
    context.publish(Done("x"), delay=timedelta(days=-1000))


@hostile
async def sends_at_an_instant_without_a_zone(_session: AsyncSession, context: Context) -> None:
    """Leave out which noon it is."""
    context.publish(Done("x"), at=datetime(2030, 1, 1, 12))  # noqa: DTZ001 - that is the point


@hostile
async def exits(_session: AsyncSession, _context: Context) -> None:
    """End its process at once."""
    os._exit(1)


@hostile
async def exits_with_success(_session: AsyncSession, _context: Context) -> None:
    """The same, and nothing looks wrong."""
    os._exit(0)


@hostile
async def kills_itself(_session: AsyncSession, _context: Context) -> None:
    """Kill its process."""
    os.kill(os.getpid(), signal.SIGKILL)


@hostile
async def stops_itself(_session: AsyncSession, _context: Context) -> None:
    """Stop its process as a debugger would."""
    os.kill(os.getpid(), signal.SIGSTOP)


@hostile
async def aborts(_session: AsyncSession, _context: Context) -> None:
    """End its process with SIGABRT."""
    os.abort()


@hostile
async def segfaults(_session: AsyncSession, _context: Context) -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


@harmless
async def is_plain(session: AsyncSession, context: Context) -> None:
    """Do what every handler does."""
    await work(session, context)


@harmless
async def returns_a_value(session: AsyncSession, context: Context) -> object:
    """Return what nobody asked for."""
    await work(session, context)
    return object()


async def swallows_one_cancellation(session: AsyncSession, context: Context) -> None:
    """Cancel its own task, swallow that, and go on."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        task.uncancel()
    await work(session, context)


EITHER[swallows_one_cancellation.__name__] = swallows_one_cancellation


@harmless
async def nests_transactions(session: AsyncSession, context: Context) -> None:
    """Use savepoints, of which one is rolled back."""
    async with session.begin_nested():
        await work(session, context)
        inner = await session.begin_nested()
        await session.execute(insert(effects).values(name=b"never"))
        await inner.rollback()


@harmless
async def recovers_by_a_savepoint(session: AsyncSession, context: Context) -> None:
    """Fail inside a savepoint, and go on."""
    with suppress(Exception):
        async with session.begin_nested():
            await session.execute(text("SELECT 1 / 0"))
    await work(session, context)


@harmless
async def leaves_tasks_behind(session: AsyncSession, context: Context) -> None:
    """Start tasks that outlive it, one of which fails."""

    async def fails() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("in a task that nobody waits for")

    _LEFT.extend([asyncio.ensure_future(fails()), asyncio.ensure_future(asyncio.sleep(2))])
    await work(session, context)


@harmless
async def leaves_a_thread_behind(session: AsyncSession, context: Context) -> None:
    """Start a thread that outlives it."""
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    await work(session, context)


@harmless
async def sends_after_its_end(session: AsyncSession, context: Context) -> None:
    """Use its context when it is over: that is refused, in a task that nobody waits for."""

    async def late() -> None:
        await asyncio.sleep(0.05)
        context.publish(Done("too late"))

    _LEFT.append(asyncio.ensure_future(late()))
    await work(session, context)


@harmless
async def forks(session: AsyncSession, context: Context) -> None:
    """Fork a process that ends at once, and wait for it."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - that is the point
    await work(session, context)


@harmless
async def runs_a_program(session: AsyncSession, context: Context) -> None:
    """Run another program, and wait for it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    await process.wait()
    await work(session, context)


@harmless
async def sends_five_thousand(session: AsyncSession, context: Context) -> None:
    """Send far more than others."""
    for number in range(5000):
        context.publish(Done(f"{number}"), type="Unheard")
    await work(session, context)


@harmless
async def logs_controls(session: AsyncSession, context: Context) -> None:
    """Write to the log what must not reach a terminal."""
    import logging  # noqa: PLC0415 - as a user's handler might

    logging.getLogger("odd").error("odd \x1b[2J\x9b\u202e %s", "\ud800")
    await work(session, context)


@harmless
async def changes_the_time_zone(session: AsyncSession, context: Context) -> None:
    """Change what its process takes for local time."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()
    try:
        await work(session, context)
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


_LEFT: list["asyncio.Future[Any]"] = []


@shop.handler(type="Odd")
async def odd(body: dict[str, str], session: AsyncSession, context: Context) -> object:
    """Do what the message asks for."""
    if succeeding := HANDLED_ODDLY.get(body["do"]) or EITHER.get(body["do"]):
        return await succeeding(session, context)
    await work(session, context)
    return await HOSTILE[body["do"]](session, context)
