"""What all suites share: rules are the `test_` methods of a class. All are on by default. A waiver needs a reason."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from inspect import getmembers, isfunction
from typing import Any, ClassVar, NoReturn
from unittest import SkipTest

from onceonly.model.errors import OnceOnlyError, OutcomeUnknown, RetryableError

ENDPOINT = "shop"
OTHER = "billing"


class Suite:
    """The rules of one port.

    `waived` maps names of rules to the reasons for skipping them. `patience` is the number of seconds that a rule waits for
    an event before it fails. `many` is a number of items that exceeds what one request of the system takes, for rules about
    calls with very many items.
    """

    waived: ClassVar[dict[str, str]] = {}
    patience: ClassVar[float] = 30.0
    many: ClassVar[int] = 120

    def __init_subclass__(cls) -> None:
        """Skip the waived rules, with the reason. Raises TypeError for an unknown rule or an empty reason."""
        super().__init_subclass__()
        for name, reason in cls.waived.items():
            if name not in rules(cls) or not reason.strip():
                raise TypeError(f"{cls.__name__} waives {name!r}: name a rule of the suite, and give a reason")
            setattr(cls, name, _waived(name, reason))


def rules(suite: type[Suite]) -> tuple[str, ...]:
    """Return the names of a suite's rules."""
    return tuple(name for name, _ in getmembers(suite, isfunction) if name.startswith("test_"))


async def broken(suite: Suite, rule: str) -> str:
    """Run one rule. Return how the adapter broke it, or an empty string if it passed.

    Errors of onceonly that the adapter raises break a rule, as failed assertions do. Errors in the adapter's code pass
    through.
    """
    try:
        await getattr(suite, rule)()
    except (AssertionError, TimeoutError, LookupError, OnceOnlyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def moments() -> Iterator[int]:
    """Yield after how many turns of the event loop a call is cancelled: each of the first ones, then more and more."""
    yield from range(8)
    turns = 8.0
    while True:
        turns *= 1.1
        yield int(turns)


async def steps(count: int) -> None:
    """Let the other tasks run for this many turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def raises(*kinds: type[Exception]) -> AsyncIterator[None]:
    """Require that the block raises one of these errors."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"expected one of {[kind.__name__ for kind in kinds]}, but nothing was raised")


def _waived(name: str, reason: str) -> object:
    async def rule(_: Suite) -> NoReturn:
        raise SkipTest(f"waived: {reason}")

    rule.__name__ = name
    rule.__doc__ = f"Waived: {reason}."
    return rule


async def cut_off(call: Coroutine[Any, Any, None]) -> None:
    """Make a call that is applied but whose response is lost. It must return or raise OutcomeUnknown."""
    try:
        await call
    except OutcomeUnknown:
        return
    except OnceOnlyError as error:
        raise AssertionError(f"the write was applied, but the error reports that nothing happened: {error!r}") from error


async def returns(call: Coroutine[Any, Any, None]) -> bool:
    """Make a call. Return False if it raised a RetryableError."""
    try:
        await call
    except RetryableError:
        return False
    return True
