"""What all suites share: rules are the `test_` methods of a class, on by default, waived only with a reason."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import getmembers, isfunction
from typing import ClassVar, NoReturn
from unittest import SkipTest

from onceonly.model.errors import OnceOnlyError

ENDPOINT = "shop"
OTHER = "billing"


class Suite:
    """A set of rules about one port. `patience` is how many seconds a rule waits for what must happen before it fails."""

    waived: ClassVar[dict[str, str]] = {}
    patience: ClassVar[float] = 30.0

    def __init_subclass__(cls) -> None:
        """Replace the waived rules by ones that are skipped, showing the reason. Raises TypeError for a rule there is not."""
        super().__init_subclass__()
        for name, reason in cls.waived.items():
            if name not in rules(cls) or not reason.strip():
                raise TypeError(f"{cls.__name__} waives {name!r}: it must be a rule of the suite, and needs a reason")
            setattr(cls, name, _waived(name, reason))


def rules(suite: type[Suite]) -> tuple[str, ...]:
    """Name the rules of a suite."""
    return tuple(name for name, _ in getmembers(suite, isfunction) if name.startswith("test_"))


async def broken(suite: Suite, rule: str) -> str:
    """Run one rule; gives in words how the adapter broke it, empty when it was kept.

    An adapter's own errors break a rule as well as a failed assertion does; a mistake in the adapter's code passes through.
    """
    try:
        await getattr(suite, rule)()
    except (AssertionError, TimeoutError, LookupError, OnceOnlyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@asynccontextmanager
async def raises(*kinds: type[Exception]) -> AsyncIterator[None]:
    """Demand that the enclosed block ends with one of these errors."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"expected one of {[kind.__name__ for kind in kinds]}, and nothing was raised")


def _waived(name: str, reason: str) -> object:
    async def rule(_: Suite) -> NoReturn:
        raise SkipTest(f"waived: {reason}")

    rule.__name__ = name
    rule.__doc__ = f"Waived: {reason}."
    return rule
