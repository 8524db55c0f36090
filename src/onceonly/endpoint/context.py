"""Context: what a handler knows about its message, and how it sends others. Everything here is captured, nothing is sent."""

from collections.abc import Mapping
from typing import NamedTuple, Unpack

from onceonly.endpoint.blobs import BlobPlace, Blobs, decided_blobs
from onceonly.endpoint.documents import ContextDocuments, close_documents
from onceonly.endpoint.message_builder import HANDLER_OPTIONS, MessageBuilder, Origin, SendOptions, check_options
from onceonly.endpoint.projections import Projections, decided_writes
from onceonly.endpoint.received_message import ReceivedMessage
from onceonly.endpoint.requests import CallSender, RequestPlace, Requests, decided_requests
from onceonly.endpoint.sender import Sender
from onceonly.formats.third_party import encode_answered
from onceonly.model.destination import Destination
from onceonly.model.errors import InvalidEffect
from onceonly.model.identity import effect_id
from onceonly.model.limits import is_endpoint_name, too_long
from onceonly.model.message import CLASS, HOPS, MOST_HOPS, TRACE_PARENT, TRACE_STATE, Headers, Message
from onceonly.model.record import Decision, Effect
from onceonly.model.remote import REQUEST, Response
from onceonly.model.third_party import ANSWERED, CALL, CALL_TYPE, FollowUp
from onceonly.ports.projections import ProjectionWriter
from onceonly.ports.store import Resources


class ContextPorts(NamedTuple):
    """What a handler can reach: beyond its store, the response that its message follows up, and the unit's resources."""

    blobs: BlobPlace | None = None
    requests: RequestPlace | None = None
    response: Response | None = None
    resources: Resources | None = None
    projections: Mapping[str, ProjectionWriter | None] = {}


NOWHERE = ContextPorts()


class Context(Sender):
    """One handler's view of its message. Valid until the handler ends."""

    def __init__(  # noqa: PLR0913 - what it has from its endpoint, by name
        self,
        builder: MessageBuilder,
        message: Message,
        *,
        now: int,
        attempt: str = "",
        places: ContextPorts = NOWHERE,
        repeats: bool = False,
        in_batch: bool = False,
    ) -> None:
        """Serve one message, and send on behalf of the endpoint of `builder`; `now` is in milliseconds since 1970.

        `repeats`: this message may be handled and committed more than once. `in_batch`: its handler takes batches.
        """
        self._endpoint = builder.endpoint
        self._message = message
        self._now = now
        self._since = message.instant if repeats else None
        self._in_batch = message if in_batch else None
        self._builder = builder
        self._effects: list[Effect] = []
        self._attempt = attempt
        self._places = places
        self._blobs: Blobs | None = None
        self._http: Requests | None = None
        self._documents: ContextDocuments | None = None
        self._projections: Projections | None = None
        self._ended = False

    @property
    def message(self) -> Message:
        """The message being handled: identity, type, time, body, extensions and headers."""
        return self._message

    @property
    def attempts(self) -> int:
        """How often this message failed before, as far as this copy knows."""
        return self._message.attempts if isinstance(self._message, ReceivedMessage) else 0

    @property
    def endpoint(self) -> str:
        """The name of the endpoint that handles it."""
        return self._endpoint

    def effect_id(self, name: object) -> str:
        """Return an id of 36 characters for something that this handler does elsewhere, the same at every attempt.

        Put it into what a service stores, to find out later whether something was done. `name`, such as a number, tells the
        ids of one handler apart.
        """
        return effect_id(self._endpoint, self._message.identity, str(name))

    @property
    def blobs(self) -> Blobs:
        """Creates and reads blobs: files in the store that the endpoint's `blobs=` names."""
        if self._blobs is None:
            self._blobs = Blobs(self._places.blobs, self._attempt)
        return self._blobs

    @property
    def documents(self) -> ContextDocuments:
        """Reads and writes the application's own documents, in the same atomic step as the entity.

        Raises InvalidEffect where the message has no unit of its own, such as in a batch or a responder.
        """
        if self._documents is None:
            if self._places.resources is None:
                raise InvalidEffect("context.documents cannot be used here: only handlers of one message have it")
            self._documents = ContextDocuments(self._places.resources, now=self._now)
        return self._documents

    @property
    def http(self) -> Requests:
        """Requests to the services in the endpoint's `peers=`, and the response to such a request."""
        if self._http is None:
            calls = CallSender(self.effect_id, self._now, self._send_call)
            self._http = Requests(self._places.requests, self._attempt, self._places.response, follow=self._follow, calls=calls)
        return self._http

    @property
    def projections(self) -> Projections:
        """The projections in the endpoint's `projections=`, such as caches, which are written after the commit."""
        if self._projections is None:
            self._projections = Projections(self._places.projections)
        return self._projections

    def reply(self, message: object, **options: Unpack[SendOptions]) -> None:
        """Send a command to the endpoint that the message asks to reply to. Options as in `send`.

        Raises InvalidEffect also if the message names no endpoint.
        """
        to = self._message.extension("replyto")
        if not is_endpoint_name(to):
            reason = f"its replyto, {to!r}, is not an endpoint name" if to else "it has no replyto"
            raise InvalidEffect(f"cannot reply to message {self._message.id!r}: {reason}; use send(..., to=...)")
        self._capture(message, to, options)

    def _close(self) -> None:
        self._ended = True
        if self._documents is not None:
            close_documents(self._documents)

    def _end(self) -> Decision:
        self._close()
        blobs = () if self._blobs is None else decided_blobs(self._blobs)
        requests, calls = ((), ()) if self._http is None else decided_requests(self._http)
        writes = () if self._projections is None else decided_writes(self._projections)
        return Decision(tuple(self._effects), (*blobs, *requests), (*writes, *calls))

    def _follow(self, message: object, url: str) -> None:
        """Send this endpoint the message that follows up a request. Raises InvalidEffect for a URL that is too long to send."""
        if problem := too_long(((REQUEST, url),)):
            raise InvalidEffect(f"cannot follow up a request: {problem}")
        self._capture(message, self._endpoint, {}, follows=((REQUEST, url),))

    def _send_call(self, body: bytes, peer: str) -> None:
        """Send this endpoint the message that has a call made."""
        options: SendOptions = {"type": CALL_TYPE, "content_type": "application/json"}
        self._capture(body, self._endpoint, options, follows=((CALL, peer),))

    def _send_answered(self, then: FollowUp, response: Response) -> None:
        """Send this endpoint the message that follows a call up, with the response."""
        options: SendOptions = {"type": then.type, "content_type": ANSWERED}
        self._capture(encode_answered(then, response), self._endpoint, options, follows=((CLASS, then.class_name),))

    def _capture(self, body: object, to: str | Destination, options: SendOptions, *, follows: Headers = ()) -> None:
        if options:
            check_options(options, HANDLER_OPTIONS)
        if self._ended:
            raise InvalidEffect("the context was used after its handler ended: send messages while the handler runs")
        origin = Origin(self._message.identity, len(self._effects), self._since, self._in_batch)
        cause = (*self._cause(to), *follows)
        send = self._builder.build(body, to, options, origin, now=self._now, cause=cause, incoming=self._message.headers)
        self._effects.append(send)

    def _cause(self, to: str | Destination) -> Headers:
        incoming = self._message
        conversation, trace, state, hops = incoming.id, "", "", 0
        for name, value in incoming.extensions:
            if name == "conversationid":
                conversation = value or conversation
            elif name == TRACE_PARENT:
                trace = value
            elif name == TRACE_STATE:
                state = value
            elif name == HOPS:
                hops = incoming.hops
        return (
            ("causationid", incoming.id),
            ("conversationid", conversation),
            ("replyto", self._endpoint if to else ""),
            (TRACE_PARENT, trace),
            (TRACE_STATE, state if trace else ""),
            (HOPS, str(hops + (hops < MOST_HOPS))),
        )


def close(context: Context) -> None:
    """Refuse sends with a context whose handler has no time left."""
    context._close()  # noqa: SLF001 - for this library, not for handlers


def follow_up_call(context: Context, then: FollowUp, response: Response) -> Decision:
    """Return what the handler of a call decides: to send what follows it up."""
    context._send_answered(then, response)  # noqa: SLF001 - for this library, not for handlers
    return decision_of(context)


def decision_of(context: Context) -> Decision:
    """Close a context and return what it captured, in order. Every later use of the context is an error."""
    return context._end()  # noqa: SLF001 - for this library, not for handlers
