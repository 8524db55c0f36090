"""An endpoint whose messages a host receives and acknowledges: a framework, a function runtime, or a loop of the user's."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan

from onceonly.model.errors import SetupError, WrongEventLoop
from onceonly.model.hosted import HostedMessage, HostedOutcome
from onceonly.runtime.hosted.deliveries import HostedDeliveries

EVERY_SECONDS = 10.0
"""Seconds between two renewals of a lease, unless the caller says otherwise."""


class Hosted:
    """Handles messages that a host received. `Endpoint.hosted` opens it.

    Calls may overlap. Each call returns an outcome for each message, and nothing is left to do afterwards: a process that is
    frozen or killed then loses nothing. Acknowledge a message only if its outcome `is_settled`.
    """

    def __init__(self, deliveries: HostedDeliveries, endpoint: str) -> None:
        self._deliveries = deliveries
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong, in words, for a health check of the host. Empty if all is well.

        Messages cannot be settled, a task of maintenance fails, or no process maintains the endpoint. It is as of the last
        call: nothing is read for it.
        """
        return self._deliveries.troubles

    async def handle(
        self,
        messages: Sequence[HostedMessage],
        *,
        remaining: float | None = None,
        extend: Callable[[Sequence[HostedMessage]], object] | None = None,
        every: float = EVERY_SECONDS,
    ) -> tuple[HostedOutcome, ...]:
        """Handle messages together, as a worker handles a batch. Returns the outcome of each, in order.

        `remaining` is how many seconds are left until the host ends this call. What is not handled a moment before is cut off,
        and its outcome is that it must be delivered again. Without it handlers have their time limits only.

        `extend` is called with the messages every `every` seconds while they are in work, to renew the host's lease. It may be
        a coroutine function. Its errors are logged.

        Cancellation of the caller cuts off what is not committed. Raises TypeError and ValueError, before anything is handled,
        for arguments of the wrong type; SetupError after the block of `hosted()`, and in a
        process that was forked inside of it; WrongEventLoop in another event loop.
        """
        self._check()
        if extend is not None and not callable(extend):
            raise TypeError(f"extend must be a function, not {type(extend).__name__}")
        return await self._deliveries.handle(
            _checked(messages),
            remaining=None if remaining is None else _seconds("remaining", remaining),
            extend=extend,
            every=_seconds("every", every, above=0),
        )

    async def handle_one(  # noqa: PLR0913 - the fields of a message, by name
        self,
        body: bytes,
        *,
        headers: Mapping[str, object] | Iterable[tuple[str, object]] | None = (),
        id: str | None = "",  # noqa: A002 - the field's name
        deliveries: int = 1,
        queue: str = "",
        remaining: float | None = None,
        extend: Callable[[Sequence[HostedMessage]], object] | None = None,
        every: float = EVERY_SECONDS,
    ) -> HostedOutcome:
        """Handle one message. The first arguments are the fields of `HostedMessage`, the others those of `handle`."""
        message = HostedMessage(body, headers, id, deliveries, queue)
        (outcome,) = await self.handle([message], remaining=remaining, extend=extend, every=every)
        return outcome

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise SetupError(
                f"hosted() of endpoint {self._endpoint!r} was opened before this process was forked, whose parent uses its "
                "connections. Open hosted() in each process, after the fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise WrongEventLoop(
                f"hosted() of endpoint {self._endpoint!r} was opened in another event loop: open it in the loop that uses it"
            )
        if self._deliveries.is_closed:
            raise SetupError(f"hosted() of endpoint {self._endpoint!r} is closed: use it inside of its `async with` block")


def _checked(messages: Iterable[HostedMessage]) -> tuple[HostedMessage, ...]:
    if isinstance(messages, HostedMessage):
        raise TypeError("handle takes a list of HostedMessage(...): put the message in a list, or use handle_one")
    if not isinstance(messages, Iterable):
        raise TypeError(f"handle takes a list of HostedMessage(...), not {type(messages).__name__}")
    taken = tuple(messages)  # it may be an iterator
    for message in taken:
        if not isinstance(message, HostedMessage):
            raise TypeError(f"handle takes HostedMessage(...), not {type(message).__name__}")
    return taken


def _seconds(name: str, value: float, *, above: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if isnan(value) or (above is not None and value <= above):
        raise ValueError(f"{name} must be a number of seconds{'' if above is None else f' above {above:g}'}, not {value}")
    return value
