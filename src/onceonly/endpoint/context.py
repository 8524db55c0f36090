"""Context: what a handler knows about its message, and how it sends others. Everything here is captured, nothing is sent."""

import math
from datetime import UTC, datetime, timedelta

from onceonly.endpoint.reading import Received
from onceonly.model.errors import InvalidEffect
from onceonly.model.identity import outgoing_id
from onceonly.model.message import Headers, Message, Send
from onceonly.model.record import Effect
from onceonly.model.settings import NAME_RULE, is_endpoint_name
from onceonly.serialization.bodies import BodyError, encode_body, type_name
from onceonly.serialization.identity import INSTANT

LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
Delay = timedelta | float


class Context:
    """One handler's view of its message. Valid until the handler ends."""

    def __init__(self, endpoint: str, message: Message, *, now: int, max_body: int) -> None:
        """Serve one message; `now` is in milliseconds since 1970, `max_body` in bytes."""
        self._endpoint = endpoint
        self._message = message
        self._now = now
        self._max_body = max_body
        self._effects: list[Effect] = []
        self._ended = False

    @property
    def message(self) -> Message:
        """The message being handled: identity, type, time, body, extensions and headers."""
        return self._message

    @property
    def attempts(self) -> int:
        """How often this message failed before, as far as this copy knows."""
        return self._message.attempts if isinstance(self._message, Received) else 0

    @property
    def endpoint(self) -> str:
        """The name of the endpoint that handles it."""
        return self._endpoint

    def send(
        self,
        message: object,
        *,
        to: str,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> None:
        """Send a command to one endpoint, once the unit is committed.

        `delay` (a timedelta, or seconds) or `at` (an aware datetime) puts it off. Raises InvalidEffect when it can never be
        sent: too large, not serializable, without a type, to an impossible name.
        """
        if not is_endpoint_name(to):
            raise InvalidEffect(f"cannot send to {to!r}: {NAME_RULE}")
        self._capture(message, to=to, type_=type, due=self._due(delay, at))

    def publish(
        self,
        event: object,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> None:
        """Publish an event to whoever subscribes, once the unit is committed. Raises InvalidEffect as `send` does."""
        self._capture(event, to="", type_=type, due=self._due(delay, at))

    def reply(
        self,
        message: object,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> None:
        """Send a command to the endpoint that asked for the answer. Raises InvalidEffect also when none did."""
        to = self._message.extension("replyto")
        if not is_endpoint_name(to):
            reason = f"its replyto is {to!r}, which is no endpoint's name" if to else "it came without a replyto"
            raise InvalidEffect(f"cannot reply to message {self._message.id!r}: {reason}; use send(..., to=...)")
        self._capture(message, to=to, type_=type, due=self._due(delay, at))

    def end(self) -> tuple[Effect, ...]:
        """Close the context and give what it captured, in order; every later use is an error."""
        self._ended = True
        return tuple(self._effects)

    def _capture(self, body: object, *, to: str, type_: str | None, due: int) -> None:
        if self._ended:
            raise InvalidEffect("the context was used after its handler had ended; nothing can be sent with it any more")
        name = type_ if type_ is not None else type_name(body.__class__)
        if not name or not name.strip():
            raise InvalidEffect(f'a {body.__class__.__name__} does not know its message type: pass type="..."')
        try:
            encoded, content_type = encode_body(body)
        except BodyError as error:
            raise InvalidEffect(f"cannot send {name}: {error}") from error
        if len(encoded) > self._max_body:
            raise InvalidEffect(f"cannot send {name}: {len(encoded)} bytes, and this transport takes {self._max_body} at most")
        message = Message(
            id=outgoing_id(self._endpoint, self._message.identity, len(self._effects)),
            source=self._endpoint,
            type=name,
            body=encoded,
            time=datetime.fromtimestamp(self._now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            datacontenttype=content_type,
            extensions=self._extensions(due, command=bool(to)),
        )
        self._effects.append(Send(message=message, to=to, due=due))

    def _extensions(self, due: int, *, command: bool) -> Headers:
        incoming = self._message
        named = (
            ("causationid", incoming.id),
            ("conversationid", incoming.extension("conversationid") or incoming.id),
            ("replyto", self._endpoint if command else ""),
            ("traceparent", incoming.extension("traceparent")),
            (INSTANT, str(due or self._now)),
        )
        return tuple((name, value) for name, value in named if value)

    def _due(self, delay: Delay | None, at: datetime | None) -> int:
        """Give the absolute instant: a re-dispatch must not put the message off once more."""
        if delay is not None and at is not None:
            raise InvalidEffect("delay= and at= exclude each other")
        if at is not None:
            if at.tzinfo is None:
                raise InvalidEffect("at= needs an aware datetime, such as datetime.now(UTC) + ...")
            return max(0, int(at.timestamp() * 1000))
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay or 0)
        if not math.isfinite(seconds) or seconds < 0:
            raise InvalidEffect(f"delay must be 0 or more, not {delay}")
        return min(self._now + int(seconds * 1000), LATEST) if seconds else 0
