"""MessageBuilder: makes a message on its way out of what a user wants sent.

Whatever can never be sent is refused here, at once.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from unicodedata import category

from onceonly.formats.bodies import BodyError, body_kind
from onceonly.formats.cloudevents import is_structured
from onceonly.formats.identity import BY_SENDER, DECIDED
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.endpoint_name import NAME_RULE, is_endpoint_name
from onceonly.model.errors import InvalidEffect
from onceonly.model.escaped import readable
from onceonly.model.expiry import EXPIRES, expiry_text
from onceonly.model.headers import carried, content_type_problem, headers_of, size_problem
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.message import PARTITION_KEY, TRACE_CONTEXT, TRACE_PARENT, Headers, Message, Send
from onceonly.model.ring import INSTANT
from onceonly.model.sizes import SHORT, type_problem
from onceonly.model.wording import an
from onceonly.runtime.observe.telemetry import CreationHook, NewMessage

_log = EventLogger(logging.getLogger("onceonly.transport"))
_WARNED = LoggedKeys()
"""Endpoints and transports whose keys this process has logged."""
LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
LONGEST_CONTENT_TYPE = 200  # characters; Service Bus takes no more
LONGEST_SHOWN = 80  # characters of a type that is refused
Delay = timedelta | float
"""How long to delay a message. A float is a number of seconds."""
Expiry = timedelta | datetime
"""When a message expires: so long from now, or at an aware datetime."""
Subscribers = Mapping[str, Sequence[str]]
"""The endpoints that take an event, by its type."""


class SendOptions(NamedTuple):
    """What a user said next to the body: `to` is empty for an event, the others are as in `Context.send`.

    `id` is for messages that no handler sends. `content_type` is for bodies that are bytes.
    """

    to: str
    type: str | None
    delay: Delay | None
    at: datetime | None
    headers: Mapping[str, str] | None = None
    expires: Expiry | None = None
    key: str | None = None
    id: str | None = None
    content_type: str | None = None


def _of_other_kind(kind: str, name: str) -> str:
    if kind == "command":
        return (
            f"cannot publish {name}: its class is declared as a command. Send it to an endpoint, or remove kind= from @message"
        )
    return f"cannot send {name}: its class is declared as an event. Publish it, or remove kind= from @message"


class Origin(NamedTuple):
    """What a message on its way out comes from: the message or the attempt that it answers, and how many were sent before it.

    `instant` is what its instant counts from: None for the sender's clock. Where one message may be handled and committed twice
    it must be the incoming message's, so that both runs send the same ids; with 0, for none, the id contains no instant.

    `in_batch` is the incoming message if its handler takes batches: the handler then runs in the traces of several messages.
    """

    identity: Identity
    position: int
    instant: int | None = None
    in_batch: Message | None = None


class MessageBuilder:
    """Makes messages on behalf of one endpoint; `max_body` is in bytes, `subscribers` are there where tokens are issued.

    `carry_headers` are the names, in lower case, of the headers that handlers pass on. `by_token` means that copies are
    recognized by their token. `transport` is where messages go, as it may be shown. `orders_keys` is that of its `Traits`.
    `creation` is called for each new message.
    """

    def __init__(  # noqa: PLR0913 - all that it must know of an endpoint, by name
        self,
        endpoint: str,
        *,
        max_body: int,
        subscribers: Subscribers | None = None,
        carry_headers: Sequence[str] = (),
        by_token: bool = False,
        transport: str = "",
        orders_keys: bool = True,
        creation: CreationHook | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._creation = creation
        self._carry_headers = carry_headers
        self._by_token = by_token
        self._subscribers = subscribers
        self._max_body = max_body
        self._transport = transport
        self._orders_keys = orders_keys
        self._second = -1
        self._second_text = ""

    def seal(
        self, body: object, wish: SendOptions, origin: Origin, *, now: int, cause: Headers = (), incoming: Headers = ()
    ) -> Send:
        """Make one message; `now` is in milliseconds since 1970, `cause` are extensions that say where it comes from.

        `incoming` are the headers of the message that is answered. Raises InvalidEffect when it can never be sent: it is
        too large or not serializable. Its type is missing, or no transport takes it. Its instant, headers, key or id are
        impossible. Or it is an event for whose subscribers no tokens can be issued.
        """
        due = _due(wish, now)
        known = body_kind(body.__class__)
        name = wish.type if wish.type is not None else known.type
        if not name or not name.strip():
            raise InvalidEffect(f'message type of {body.__class__.__name__} is unknown: pass type="..."')
        if problem := type_problem(name):
            raise InvalidEffect(f"cannot send {readable(name[:LONGEST_SHOWN])!r}: {problem}")
        if known.declared is not None and (known.declared == "command") != bool(wish.to):
            raise InvalidEffect(_of_other_kind(known.declared, name))
        if self._subscribers is not None and not wish.to and name not in self._subscribers:
            raise InvalidEffect(
                f"cannot publish {name}: its subscribers are not declared, so no tokens can be issued. List "
                f"them on the endpoint: Tokens(subscribers={{{name!r}: [...]}})"
            )
        try:
            encoded = known.encode(body)
        except BodyError as error:
            raise InvalidEffect(f"cannot send {name}: {error}") from error
        kind = known.content_type if wish.content_type is None else _content_type(wish.content_type, body)
        if len(encoded) > self._max_body:
            where = f" ({self._transport})" if self._transport else ""
            raise InvalidEffect(
                f"cannot send {name}: its body is {len(encoded)} bytes long; the limit of this transport is {self._max_body}"
                f"{where}. Store the data elsewhere, and send a reference to it"
            )
        if wish.key is not None and not self._orders_keys:
            self._warn_of_key()
        options = _options(wish, due, now) if wish.expires is not None or wish.key is not None else ()
        if wish.id is not None:
            id_ = self._own_id(wish.id)
            claimed = (DECIDED, BY_SENDER)
        else:
            instant = max(due, now) if origin.instant is None else _repeatable(wish, origin.instant)
            id_ = outgoing_id(self.endpoint, origin.identity, origin.position, instant)
            claimed = (INSTANT, str(instant or max(due, now)))
        named = known.class_extension if wish.type is None else ()
        headers = self._headers(wish, incoming, name) if wish.headers or self._carry_headers else ()
        if self._creation is not None and not any(key.lower() == TRACE_PARENT for key, _ in headers):
            cause = _traced(self._creation, NewMessage(name, wish.to, id_, cause, len(encoded), origin.in_batch))
        message = Message(
            id=id_,
            source=self.endpoint,
            type=name,
            body=encoded,
            time=self._time(now),
            datacontenttype=kind,
            extensions=tuple([item for item in (*cause, claimed, *options, *named) if item[1]]),
            headers=headers,
        )
        return Send(message=message, to=wish.to, due=due)

    def _headers(self, wish: SendOptions, incoming: Headers, name: str) -> Headers:
        """Give the user's headers, and those that are carried along from the message that is answered."""
        try:
            own = headers_of(wish.headers) if wish.headers else ()
            headers = (*carried(self._carry_headers, incoming, own), *own) if self._carry_headers else own
        except ValueError as error:
            raise InvalidEffect(f"cannot send {name}: {error}") from error
        if problem := size_problem(headers):
            raise InvalidEffect(f"cannot send {name}: {problem}")
        return headers

    def _warn_of_key(self) -> None:
        """Log once in a process that the transport only delivers keys."""
        if _WARNED.add(self.endpoint, self._transport):
            _log.warning("message key has no effect", extra={"endpoint": self.endpoint, "place": self._transport})

    def _own_id(self, id_: str) -> str:
        """Check an id of the user's. A message with it has no instant: every copy must be claimed in the same place."""
        if self._by_token:
            raise InvalidEffect(
                "id= cannot be used with deduplication=Tokens(...): copies are recognized by their token, and each call issues "
                "a new one. Use transaction(idempotency_key=...)"
            )
        return _text("id", id_)

    def _time(self, now: int) -> str:
        """Write an instant; a batch of messages is sent within a second or two, so most of the text is there already."""
        second, millisecond = divmod(now, 1000)
        if second != self._second:
            self._second, self._second_text = second, datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")
        return f"{self._second_text}.{millisecond:03}Z"


def _traced(creation: CreationHook, message: NewMessage) -> Headers:
    """Have the message carry its own trace context instead of that of its cause; gives its attributes."""
    context = creation.created(message)
    return (*[item for item in message.cause if item[0] not in TRACE_CONTEXT], *context) if context else message.cause


def command(to: str) -> str:
    """Give the name of the endpoint that a command goes to. Raises InvalidEffect for an impossible one."""
    if not is_endpoint_name(to):
        raise InvalidEffect(f"cannot send to {to!r}: {NAME_RULE}")
    return to


def _repeatable(wish: SendOptions, since: int) -> int:
    """Give an instant that is the same whenever the handler runs; 0 where nothing is known that is."""
    return max(_due(wish, since), since) if since else 0


def _text(option: str, value: object) -> str:
    """Check an id or a key. Raises InvalidEffect."""
    if not isinstance(value, str):
        raise InvalidEffect(f"{option}= must be text, not {type(value).__name__}. Use str(...)")
    if any(category(letter) in ("Cc", "Cs") for letter in value):
        raise InvalidEffect(f"{option}= has control characters or is not valid Unicode. Use plain text of one line")
    size = len(value.encode())
    if not value.strip() or size > SHORT:
        raise InvalidEffect(f"{option}= must have 1 to {SHORT} bytes that are not all blank, and this has {size}")
    return value


def _content_type(content_type: object, body: object) -> str:
    """Check the media type of a body that is bytes. Raises InvalidEffect."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidEffect(f"content_type= is for bodies that are bytes; {an(type(body).__name__)} is sent as JSON")
    if problem := content_type_problem(content_type, longest=LONGEST_CONTENT_TYPE):
        raise InvalidEffect(f"content_type= {problem}")
    text = str(content_type)
    if is_structured(text):
        raise InvalidEffect(f"content_type={text!r} cannot be used: receivers would take the body for a whole CloudEvent")
    return text


def _options(wish: SendOptions, due: int, now: int) -> Headers:
    """Give the attributes for what a user asked of a message. Raises InvalidEffect."""
    key = "" if wish.key is None else _text("key", wish.key)
    return (PARTITION_KEY, key), (EXPIRES, "" if wish.expires is None else _expiry(wish.expires, due, now))


def _expiry(expires: object, due: int, now: int) -> str:
    if isinstance(expires, timedelta):
        if expires <= timedelta():
            raise InvalidEffect(f"expires= must be longer than 0, not {expires}")
        instant = min(now + expires // timedelta(milliseconds=1), LATEST)
    elif isinstance(expires, datetime):
        if expires.tzinfo is None:
            raise InvalidEffect("expires= needs an aware datetime, such as datetime.now(UTC) + ...")
        instant = min(max(0, int(expires.timestamp() * 1000)), LATEST)
    else:
        raise InvalidEffect(f"expires= must be a timedelta or an aware datetime, not {an(type(expires).__name__)}")
    if due > now and instant <= due:
        raise InvalidEffect("expires= is not later than delay= or at=: the message would expire before it is delivered")
    return expiry_text(instant)


def _due(wish: SendOptions, now: int) -> int:
    """Give the absolute instant: a re-dispatch must not put the message off once more."""
    if wish.delay is None and wish.at is None:
        return 0
    if wish.delay is not None and wish.at is not None:
        raise InvalidEffect("delay= and at= exclude each other: use one of them")
    if wish.at is not None:
        if wish.at.tzinfo is None:
            raise InvalidEffect("at= needs an aware datetime, such as datetime.now(UTC) + ...")
        return min(max(0, int(wish.at.timestamp() * 1000)), LATEST)
    seconds = wish.delay.total_seconds() if isinstance(wish.delay, timedelta) else float(wish.delay or 0)
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidEffect(f"delay must be 0 or more, not {wish.delay}")
    return min(now + int(seconds * 1000), LATEST) if seconds else 0
