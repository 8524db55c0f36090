"""What the rules about lost answers share: a call is made once, and whatever it says must be true."""

from collections.abc import Coroutine
from typing import Any

from onceonly.model.errors import OnceOnlyError, OutcomeUnknown, RetryableError


async def cut_off(call: Coroutine[Any, Any, None]) -> None:
    """Make a call whose answer is lost after it was applied: it may return or say OutcomeUnknown, and nothing else is true."""
    try:
        await call
    except OutcomeUnknown:
        return
    except OnceOnlyError as error:
        raise AssertionError(f"the write was applied, and the error says that nothing happened: {error!r}") from error


async def returns(call: Coroutine[Any, Any, None]) -> bool:
    """Make a call; tell whether it returned, rather than asking to be tried again."""
    try:
        await call
    except RetryableError:
        return False
    return True
