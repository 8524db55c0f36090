"""What the rules about lost responses share: one call, whose reported outcome must be true."""

from collections.abc import Coroutine
from typing import Any

from onceonly.model.errors import OnceOnlyError, OutcomeUnknown, RetryableError


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
