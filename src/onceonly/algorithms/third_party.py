"""Calls to services that are not ours: executed once by an idempotency key that is committed before the first request.

capture    The handler decides request, key and follow-up. They are one message to the endpoint itself, and an effect of
           its record. So they are sent only after the commit, each time with the same key.
execute    If that message is new, the request is sent with its key, before the unit. Without a final response the message
           comes again later. A crash, a copy or a lost answer repeats the same request with the same key.
follow up  The unit of that message commits its claim and the follow-up message, which contains the response.
give up    A service forgets its keys after a time. Before that, the request is no longer sent. `find` asks the service
           what became of it. If that is not known, the message becomes a dead letter with the reason "outcome unknown".
"""

from collections.abc import Callable, Sequence

from onceonly.algorithms.remote_call import together
from onceonly.formats.third_party import call_in
from onceonly.model.errors import HandlerFailed, OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.remote import Response
from onceonly.model.third_party import ApiCall, called_peer
from onceonly.ports.effects import Effects, Responses
from onceonly.ports.environment import Clock
from onceonly.ports.third_party import ThirdParties


class CallingEffects:
    """The effects of an endpoint that calls services which are not ours. All else is left to `inner`."""

    def __init__(
        self, inner: Effects, services: ThirdParties, *, clock: Clock, read: Callable[[Message], ApiCall] = call_in
    ) -> None:
        """Call these services; `read` finds the call in a message."""
        self.inner = inner
        self._read = read
        self._services = services
        self._clock = clock
        self.register, self.create, self.discard, self.clean = inner.register, inner.create, inner.discard, inner.clean
        self.call = inner.call

    async def responses(self, messages: Sequence[Message]) -> Responses:
        """Make the calls of these messages, and ask `inner` for what the others need."""
        calling = [message for message in messages if called_peer(message)]
        others = [message for message in messages if not called_peer(message)]
        found = {**await self.inner.responses(others)} if others else {}
        return {**found, **await self._execute(calling)}

    async def _execute(self, messages: Sequence[Message]) -> Responses:
        """Make the calls of these messages; returns the response of each, or the error that its message fails with."""
        found: dict[Identity, Response | OnceOnlyError] = {}
        calls: dict[Identity, ApiCall] = {}
        for message in messages:
            try:
                call = self._read(message)
            except ValueError as error:
                found[message.identity] = HandlerFailed(Failure(kind=FailureKind.REJECTED, reason=str(error)))
                continue
            known = await self._services.find(call) if _is_over(call, self._clock) else None
            if known is None:  # its key is still good, or the service never executed it
                calls[message.identity] = call
            else:
                found[message.identity] = known
        responses = await self._services.execute([*calls.values()]) if calls else ()
        return together({**found, **dict(zip(calls, responses, strict=True))})


def _is_over(call: ApiCall, clock: Clock) -> bool:
    """Return whether the service may have forgotten the key of a call."""
    return bool(call.until) and clock.now() >= call.until
