"""MessageBuilder: makes a message on its way out of what a user wants sent.

Whatever can never be sent is refused here, at once.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat, TypedDict
from unicodedata import category

from onceonly.config.destinations import DestinationPolicy
from onceonly.formats.bodies import BodyError, body_kind
from onceonly.formats.cloudevents import encode, is_structured
from onceonly.formats.identity import BY_SENDER, DECIDED
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.destination import Carrier, Destination, Stream, write_destination
from onceonly.model.errors import InvalidEffect
from onceonly.model.escaping import readable
from onceonly.model.headers import carried, content_type_problem, headers_of, size_problem
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.limits import NAME_RULE, SHORT, is_endpoint_name, type_problem
from onceonly.model.message import EXPIRES, PARTITION_KEY, TRACE_CONTEXT, TRACE_PARENT, Headers, Message, Send, expiry_text
from onceonly.model.wording import an
from onceonly.runtime.observe.telemetry import CreationHook, NewMessage

if TYPE_CHECKING:  # imported where a format is set
    from onceonly.formats.message_formats import MessageFormat

_log = EventLogger(logging.getLogger("onceonly.transport"))
_WARNED = LoggedKeys()
"""Endpoints and transports whose keys this process has logged."""
LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
LONGEST_CONTENT_TYPE = 200  # characters; Service Bus takes no more
MOST_CARRIED = 16 * 1024 * 1024
"""Bytes of a body for a carrier: what a row of a store takes. Its own broker may take less."""
LONGEST_SHOWN = 80  # characters of a type that is refused
Delay = timedelta | float
"""How long to delay a message. A float is a number of seconds."""
Expiry = timedelta | datetime
"""When a message expires: so long from now, or at an aware datetime."""
Subscribers = Mapping[str, Sequence[str]]
"""The endpoints that take an event, by its type."""
NO_DESTINATIONS = DestinationPolicy()


class SendOptions(TypedDict, total=False):
    """Options of a message that is sent or published. `Context.send` documents them."""

    type: str | None
    delay: Delay | None
    at: datetime | None
    headers: Mapping[str, str] | None
    expires: Expiry | None
    key: str | None
    content_type: str | None


class OutsideSendOptions(SendOptions, total=False):
    """Options of a message that no handler sends. `Transaction.send` documents them."""

    id: str | None


HANDLER_OPTIONS: frozenset[str] = SendOptions.__optional_keys__
OUTSIDE_OPTIONS: frozenset[str] = OutsideSendOptions.__optional_keys__


def check_options(options: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise TypeError, as Python does, for an option that is unknown."""
    if unknown := options.keys() - known:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}. Options of a message are {', '.join(sorted(known))}")


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
    recognized by their token. `transport` is where messages go, as it may be shown. Without one, `has_transport` is false, and
    nothing can be sent. `orders_keys` is that of its `Traits`.
    `creation` is called for each new message. `destinations` are those that are not endpoints. `format_` writes messages,
    unless their destination has a format of its own. `carries_headers` is that of the transport's `Traits`.
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
        has_transport: bool = True,
        orders_keys: bool = True,
        creation: CreationHook | None = None,
        destinations: DestinationPolicy = NO_DESTINATIONS,
        format_: "MessageFormat | None" = None,
        carries_headers: bool = True,
    ) -> None:
        self.endpoint = endpoint
        self._format = foreign_format(format_)
        self._carries_headers = carries_headers
        self._creation = creation
        self._carry_headers = carry_headers
        self._by_token = by_token
        self._subscribers = subscribers
        self._max_body = max_body
        self._transport = transport
        self._has_transport = has_transport
        self._orders_keys = orders_keys
        self._destinations = destinations
        self._known_second = (-1, "")

    def build(  # noqa: PLR0913 - what makes a message
        self,
        body: object,
        to: str | Destination,
        options: SendOptions,
        origin: Origin,
        *,
        now: int,
        cause: Headers = (),
        incoming: Headers = (),
    ) -> Send:
        """Make one message. `to` is empty for an event. `now` is in milliseconds since 1970.

        `cause` are extensions that say where it comes from. `incoming` are the headers of the message that is answered.
        Raises InvalidEffect when it can never be sent: it is
        too large or not serializable. Its type is missing, or no transport takes it. Its instant, headers, key or id are
        impossible. Or it is an event for whose subscribers no tokens can be issued.
        """
        due = _due(options, now) if options else 0
        known = body_kind(body.__class__)
        own_type, key, expires, id_ = options.get("type"), options.get("key"), options.get("expires"), options.get("id")
        name = known.type if own_type is None else own_type
        if not name or not name.strip():
            raise InvalidEffect(f'message type of {body.__class__.__name__} is unknown: pass type="..."')
        if problem := type_problem(name):
            raise InvalidEffect(f"cannot send {readable(name[:LONGEST_SHOWN])!r}: {problem}")
        if known.declared is not None and (known.declared == "command") != bool(to):
            raise InvalidEffect(_of_other_kind(known.declared, name))
        self._check_receivers(name, to)
        is_plain = to.__class__ is str and to and self._destinations.has_queues
        place = to if is_plain else self._destinations.place_of(to, name, due - now)
        target = write_destination(place) if isinstance(place, Destination) else place
        try:
            encoded = known.encode(body)
        except BodyError as error:
            raise InvalidEffect(f"cannot send {name}: {error}") from error
        content_type, own_headers = options.get("content_type"), options.get("headers")
        kind = known.content_type if content_type is None else _content_type(content_type)
        most = MOST_CARRIED if isinstance(place, Carrier) else self._max_body
        if len(encoded) > most:
            where = f" ({self._transport})" if self._transport and most == self._max_body else ""
            raise InvalidEffect(
                f"cannot send {name}: its body is {len(encoded)} bytes long; the limit of this transport is {most}"
                f"{where}. Store the data elsewhere, and send a reference to it"
            )
        if key is not None and not self._orders_keys:
            self._warn_of_key()
        attributes = _attributes(key, expires, due, now) if expires is not None or key is not None else ()
        if id_ is not None:
            message_id = self._own_id(id_)
            attributes = ((DECIDED, BY_SENDER), *attributes)
        else:
            instant = max(due, now) if origin.instant is None else _repeatable(options, origin.instant)
            message_id = outgoing_id(self.endpoint, origin.identity, origin.position, instant)
        named = known.class_extension if own_type is None else ()
        headers = self._headers(own_headers, incoming, name) if own_headers or self._carry_headers else ()
        if self._creation is not None and not any(key.lower() == TRACE_PARENT for key, _ in headers):
            cause = _traced(self._creation, NewMessage(name, target, message_id, cause, len(encoded), origin.in_batch))
        message = Message(
            id=message_id,
            source=self.endpoint,
            type=name,
            body=encoded,
            time=self._time(now),
            datacontenttype=kind,
            extensions=tuple([item for item in (*cause, *attributes, *named) if item[1]]),
            headers=headers,
        )
        chosen = self._format if place.__class__ is str else self._format_of(place)
        plain = Send(message=message, to=target, due=due)
        send = plain if chosen is None else self._formatted(chosen, message, target, due)
        if isinstance(place, Stream):
            _check_field(place, send)
        return send

    def _format_of(self, place: str | Destination) -> "MessageFormat | None":
        """Return the format of a destination, or that of the endpoint. None for CloudEvents. Raises InvalidEffect."""
        own = place.format if isinstance(place, Destination) else None
        if own is None:
            return self._format
        from onceonly.formats.message_formats import format_problem  # noqa: PLC0415 - few destinations have one

        if problem := format_problem(own):
            raise InvalidEffect(f"cannot send to {place}: {problem}")
        return foreign_format(own)

    def _formatted(self, format_: "MessageFormat", message: Message, to: str, due: int) -> Send:
        """Write a message in another format than CloudEvents. Raises InvalidEffect for one that it would not read back."""
        from onceonly.formats.message_formats import write_formatted  # noqa: PLC0415 - see above

        try:
            written = write_formatted(format_, message)
        except ValueError as error:
            raise InvalidEffect(f"cannot send {message.type}: {error}") from error
        what = f"cannot send {message.type}: {type(format_).__name__}"
        if written.headers and not self._carries_headers:
            names = ", ".join(name for name, _ in written.headers)
            raise InvalidEffect(
                f"{what} writes headers ({names}), and this transport has none. Use a format that writes only the body"
            )
        if (size := len(written.body)) > self._max_body:
            raise InvalidEffect(f"{what} makes it {size} bytes long; the limit of this transport is {self._max_body}")
        return Send(message=written, to=to, due=due, formatted=True)

    def _headers(self, given: Mapping[str, str] | None, incoming: Headers, name: str) -> Headers:
        """Return the user's headers, and those that are carried along from the message that is answered."""
        try:
            own = headers_of(given) if given else ()
            headers = (*carried(self._carry_headers, incoming, own), *own) if self._carry_headers else own
        except ValueError as error:
            raise InvalidEffect(f"cannot send {name}: {error}") from error
        if problem := size_problem(headers):
            raise InvalidEffect(f"cannot send {name}: {problem}")
        return headers

    def _check_receivers(self, name: str, to: str | Destination) -> None:
        """Check that a message can get to somewhere. Raises InvalidEffect."""
        if not self._has_transport and not isinstance(to, Carrier):
            raise InvalidEffect(f'cannot send {name}: endpoint {self.endpoint!r} has no transport. Set transport="..." on it')
        if self._subscribers is not None and not to and name not in self._subscribers:
            raise InvalidEffect(
                f"cannot publish {name}: its subscribers are not declared, so no tokens can be issued. List "
                f"them on the endpoint: Tokens(subscribers={{{name!r}: [...]}})"
            )

    def _warn_of_key(self) -> None:
        """Log once in a process that the transport only delivers keys."""
        if _WARNED.add(self.endpoint, self._transport):
            _log.warning("message key has no effect", extra={"endpoint": self.endpoint, "place": self._transport})

    def _own_id(self, id_: object) -> str:
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
        known = self._known_second  # another thread may replace it
        if known[0] != second:
            known = self._known_second = (second, datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00"))
        return f"{known[1]}.{millisecond:03}Z"


def _check_field(stream: Stream, send: Send) -> None:
    """Check that no header has the name of the field with the body. Raises InvalidEffect."""
    headers, _ = encode(send)
    if stream.field in {name for name, _ in headers}:
        raise InvalidEffect(
            f"cannot send to {stream}: the body is in the field {stream.field!r}, and a header has the same name. Receivers "
            "would see one of them. Rename the header, or choose another field"
        )


def foreign_format(format_: "MessageFormat | None") -> "MessageFormat | None":
    """Return a format, or None for CloudEvents, which need none."""
    if format_ is None:
        return None
    from onceonly.formats.message_formats import CloudEvents  # noqa: PLC0415 - few endpoints have one

    return None if isinstance(format_, CloudEvents) else format_


def _traced(creation: CreationHook, message: NewMessage) -> Headers:
    """Replace the trace context of the cause by the message's own. Returns its attributes."""
    context = creation.created(message)
    return (*[item for item in message.cause if item[0] not in TRACE_CONTEXT], *context) if context else message.cause


def command(to: str | Destination) -> str | Destination:
    """Return what a command goes to. Raises InvalidEffect for an impossible name of an endpoint."""
    if not isinstance(to, Destination) and not is_endpoint_name(to):
        raise InvalidEffect(f"cannot send to {to!r}: {NAME_RULE}")
    return to


def _repeatable(options: SendOptions, since: int) -> int:
    """Return an instant that is the same whenever the handler runs; 0 where nothing is known that is."""
    return max(_due(options, since), since) if since else 0


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


def _content_type(content_type: object) -> str:
    """Check the media type of a body. Raises InvalidEffect."""
    if problem := content_type_problem(content_type, longest=LONGEST_CONTENT_TYPE):
        raise InvalidEffect(f"content_type= {problem}")
    text = str(content_type)
    if is_structured(text):
        raise InvalidEffect(f"content_type={text!r} cannot be used: receivers would take the body for a whole CloudEvent")
    return text


def _attributes(key: object, expires: object, due: int, now: int) -> Headers:
    """Return the attributes of a message with a key or an expiry. Raises InvalidEffect."""
    text = "" if key is None else _text("key", key)
    return (PARTITION_KEY, text), (EXPIRES, "" if expires is None else _expiry(expires, due, now))


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


def _due(options: SendOptions, now: int) -> int:
    """Return the absolute instant: a re-dispatch must not put the message off once more."""
    delay, at = options.get("delay"), options.get("at")
    if delay is None and at is None:
        return 0
    if delay is not None and at is not None:
        raise InvalidEffect("delay= and at= exclude each other: use one of them")
    if at is not None:
        if not isinstance(at, datetime):
            raise InvalidEffect(f"at= must be an aware datetime, not {at!r:.100}")
        if at.tzinfo is None:
            raise InvalidEffect("at= needs an aware datetime, such as datetime.now(UTC) + ...")
        return min(max(0, int(at.timestamp() * 1000)), LATEST)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else _seconds(delay)
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidEffect(f"delay must be 0 or more, not {delay!s:.100}" if seconds < 0 else "delay must be a finite number")
    return min(now + int(seconds * 1000), LATEST) if seconds else 0


def _seconds(delay: object) -> float:
    if not isinstance(delay, SupportsFloat) or isinstance(delay, bool):
        raise InvalidEffect(f"delay= must be a timedelta or a number of seconds, not {delay!r:.100}")
    try:
        return float(delay)
    except OverflowError:
        return math.inf
