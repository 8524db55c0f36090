"""What the links of the stand-in do: they send, receive, settle, manage, and accept sessions."""

import asyncio
from typing import Any
from uuid import UUID

from tests.servers.servicebus.codec import Array, Described, Int, Malformed, Symbol, Timestamp
from tests.servers.servicebus.entities import Entity, Namespace, Refused
from tests.servers.servicebus.protocol import ACCEPTED, MODIFIED, REJECTED, RELEASED, Frames, Link, Session, rejected
from tests.servers.servicebus.wire import Request, answer, read_batch, read_one, tag_of, write

TICKS = 621_355_968_000_000_000  # .NET's ticks at the beginning of 1970
MAX_MESSAGE = 256 * 1024
SESSION_FILTER = "com.microsoft:session-filter"
TIMEOUT = "com.microsoft:timeout"
SESSION_LOST = "com.microsoft:session-lock-lost"
DEFAULT_TIMEOUT_MS = 60_000
_LONG, _TIMESTAMP = 0x81, 0x83


class Broker:
    """Everything that connections share. Tests set how it fails.

    `refusals` is what it answers to messages and new links, by path, and `refused_operations` to management, by operation.
    `silent` is that it stores messages and cuts the connection instead of confirming, `deaf` that it never answers.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.peers: set[Peer] = set()
        self.refusals: dict[str, Refused] = {}
        self.refused_operations: dict[str, Refused] = {}
        self.silent = False
        self.deaf = False
        self.requests: list[str] = []

    def serve(self) -> "Peer":
        """Make the protocol of one connection."""
        return Peer(self)

    def store(self, path: str, raw: bytes, message_format: int) -> None:
        """Store what one transfer brings. Raises Refused."""
        if (refused := self.refusals.get(path.lower())) is not None:
            raise refused
        if path.lower() not in self.namespace.topics and self.namespace.find(path) is None:
            raise Refused("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        if len(raw) > MAX_MESSAGE:
            raise Refused("amqp:link:message-size-exceeded", f"the message has {len(raw)} bytes; the limit is {MAX_MESSAGE}")
        try:
            messages = read_batch(raw, message_format)
        except (Malformed, TypeError, AttributeError, ValueError) as error:
            raise Refused("amqp:decode-error", str(error)) from error
        self.namespace.send(path, messages)

    def pump(self) -> None:
        """Deliver what waits to those who asked for it."""
        self.namespace.move()
        for peer in tuple(self.peers):
            peer.pump()

    def disconnect(self) -> None:
        """Cut every connection."""
        for peer in tuple(self.peers):
            peer.cut()


class Peer(Frames):
    """One connection of a client."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._senders: dict[Link, Entity] = {}
        self._sessions: dict[Link, str] = {}
        self._waiting: dict[Link, tuple[str | None, float]] = {}
        self._held: dict[tuple[int, int], tuple[Entity, UUID]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._broker.peers.add(self)

    def data_received(self, data: bytes) -> None:
        """Act, then deliver what that makes possible."""
        super().data_received(data)
        self._broker.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what the client asked for. Its locks stay until they end; its sessions are given up."""
        self._broker.peers.discard(self)
        for link in tuple(self._senders):
            self.detached(link)
        self._waiting.clear()

    def pump(self) -> None:
        """Deliver to every link with credit."""
        for link, (wanted, until) in tuple(self._waiting.items()):
            self._accept_session(link, wanted, until)
        for link, entity in tuple(self._senders.items()):
            session = self._sessions.get(link)
            if self._broker.namespace.find(_path_of(link.address)) is not entity:
                self._end(link, "amqp:not-found", "The messaging entity was deleted.")
                continue
            entity.end_locks()
            if session is not None and not entity.holds(session, link):
                self._end(link, SESSION_LOST, "The session lock has expired.")
                continue
            while link.credit > 0 and (message := entity.take(session)) is not None:
                assert message.token is not None
                delivery = self.deliver(link, tag_of(message.token), write(message))
                self._held[link.session.channel, delivery] = entity, message.token
            if link.drains:
                self.drained(link)

    def _end(self, link: Link, condition: str, why: str) -> None:
        self.detached(link)
        self.refuse(link, condition, why)

    # Links

    def attached(self, link: Link) -> None:
        """Open a link, refuse it, or let it wait for a session."""
        path = _path_of(link.address)
        refused = None if path.startswith("$") else self._broker.refusals.get(path.lower())
        if refused is None and not self._exists(path, receives=link.sends):
            refused = Refused("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        entity = self._broker.namespace.find(path) if link.sends else None
        if refused is None and entity is not None and entity.has_sessions != (SESSION_FILTER in link.filters):
            why = "requires sessions" if entity.has_sessions else "has no sessions"
            refused = Refused("amqp:not-allowed", f"It is not possible to create this receiver: the entity {why}.")
        if refused is not None:
            self.refuse(link, refused.condition, refused.why)
        elif entity is not None and entity.has_sessions:
            found = link.filters[SESSION_FILTER]
            wanted = found.value if isinstance(found, Described) else found
            milliseconds = int(link.properties.get(TIMEOUT) or DEFAULT_TIMEOUT_MS)
            until = asyncio.get_running_loop().time() + milliseconds / 1000
            self._waiting[link] = wanted, until
            self._accept_session(link, wanted, until)
        else:
            self.accept(link, most=MAX_MESSAGE)
            if entity is not None:
                self._senders[link] = entity

    def detached(self, link: Link) -> None:
        """Give up the session of a link."""
        entity, session = self._senders.pop(link, None), self._sessions.pop(link, None)
        self._waiting.pop(link, None)
        if entity is not None and session is not None and entity.holds(session, link):
            entity.close_session(session, counts=False)

    def flowed(self, link: Link) -> None:
        """`pump` delivers."""

    def _accept_session(self, link: Link, wanted: str | None, until: float) -> None:
        entity = self._broker.namespace.find(_path_of(link.address))
        session = None if entity is None else entity.free_session(wanted)
        if session is None or entity is None:
            if wanted is not None and entity is not None:
                self._waiting.pop(link)
                self.refuse(link, "com.microsoft:session-cannot-be-locked", f"The requested session '{wanted}' is locked.")
            elif asyncio.get_running_loop().time() >= until:
                self._waiting.pop(link)
                self.refuse(link, TIMEOUT, "The operation did not complete within the allotted timeout.")
            return
        del self._waiting[link]
        locked_until = entity.open_session(session, link)
        self._sessions[link] = session
        self._senders[link] = entity
        properties: dict[str, Any] = {"com.microsoft:locked-until-utc": locked_until * 10_000 + TICKS}
        self.accept(link, filters={Symbol(SESSION_FILTER): session}, most=MAX_MESSAGE, **properties)

    def _exists(self, path: str, *, receives: bool) -> bool:
        entity = path.removesuffix("/$management")
        namespace = self._broker.namespace
        if path == "$cbs" or (receives and entity == path and namespace.find(path) is not None):
            return True
        if entity != path or not receives:
            return entity.lower() in namespace.topics or namespace.find(entity) is not None
        return False

    # Transfers

    def received(self, link: Link, raw: bytes) -> None:
        """Store a message, or answer a request."""
        if self._broker.deaf:
            return
        path = _path_of(link.address)
        if path == "$cbs" or path.endswith("/$management"):
            self.settle(link)
            request = Request(raw)
            found = self._authorize(request) if path == "$cbs" else self._manage(path, request)
            self._reply(link, answer(request, *found))
            return
        self._broker.requests.append("send")
        try:
            self._broker.store(path, raw, link.message_format)
        except Refused as error:
            self.settle(link, error.condition, error.why)
            return
        if self._broker.silent:
            self.cut()
            return
        self.settle(link)

    def settled(self, session: Session, delivery: int, state: Described) -> Described:
        """Complete a message, or unlock it. Say so, or why not."""
        entity, token = self._held.pop((session.channel, delivery), (None, None))
        self._broker.requests.append("settle")
        outcome = int(state.descriptor)
        if entity is None or token is None:
            return rejected("com.microsoft:message-lock-lost", "the lock supplied is invalid")
        try:
            if outcome == ACCEPTED:
                entity.complete(token)
            elif outcome == RELEASED:
                entity.abandon(token, counts=False)
            elif outcome == REJECTED:
                entity.bury(token)
            elif outcome == MODIFIED:
                entity.abandon(token, counts=bool(state.value and state.value[0]))
        except Refused as error:
            return rejected(error.condition, error.why)
        return Described(state.descriptor, [])

    # Nodes

    def _authorize(self, request: Request) -> tuple[dict[str, Any]]:
        """Answer to a token: the service refuses one for an entity that does not exist."""
        entity = _path_of(request.properties.get("name", ""))
        status, why = 202, "Accepted"
        if "cbs" in self._broker.refused_operations:
            status, why = 401, self._broker.refused_operations["cbs"].why
        elif (
            not self._exists(entity.removesuffix("/$management"), receives=True)
            and entity.lower() not in self._broker.namespace.topics
        ):
            status, why = 404, f"The messaging entity '{entity}' could not be found."
        return ({"status-code": Int(status), "status-description": why},)

    def _manage(self, path: str, request: Request) -> tuple[dict[str, Any], Any]:
        operation = request.properties.get("operation", "").removeprefix("com.microsoft:")
        self._broker.requests.append(operation)
        entity = self._broker.namespace.find(path.removesuffix("/$management"))
        try:
            if operation in self._broker.refused_operations:
                raise self._broker.refused_operations[operation]
            if "session-id" in (request.body or {}) and entity is not None:
                self._check_session(entity, request)
            body = operate(entity, operation, request.body or {})
        except Refused as error:
            status = 404 if "not-found" in error.condition else 503 if "busy" in error.condition else 410
            condition = Symbol(error.condition)
            return {"statusCode": Int(status), "statusDescription": error.why, "errorCondition": condition}, None
        return {"statusCode": Int(200), "statusDescription": "OK"}, body

    def _check_session(self, entity: Entity, request: Request) -> None:
        """Refuse what is not asked by the link that holds the session. Raises Refused."""
        entity.end_locks()
        session, name = request.body["session-id"], request.properties.get("associated-link-name")
        if not any(link.name == name and entity.holds(session, link) for link in self._sessions):
            raise Refused(SESSION_LOST, f"The lock of session '{session}' has expired.")

    def _reply(self, link: Link, raw: bytes) -> None:
        """Send an answer on the link of this session that receives from the same node."""
        for reply in link.session.links.values():
            if reply.sends and _path_of(reply.address) == _path_of(link.address):
                self.deliver(reply, b"reply", raw, settled=True)


def operate(entity: Entity | None, operation: str, body: dict[str, Any]) -> Any:
    """Do what a management request asks for; return the body of the answer. Raises Refused."""
    if entity is None:
        raise Refused("amqp:not-found", "The messaging entity could not be found.")
    if operation not in _OPERATIONS:
        raise Refused("amqp:not-implemented", f"the stand-in has no {operation}")
    return _OPERATIONS[operation](entity, body)


def _renew(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    tokens = _tokens(body)
    for token in tokens:
        entity.held(token)
    return {"expirations": Array(_TIMESTAMP, tuple(entity.renew(token) for token in tokens))}


def _renew_session(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    return {"expiration": Timestamp(entity.renew_session(body["session-id"]))}


def _get_state(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    return {"session-state": entity.states.get(body["session-id"])}


def _set_state(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    if body["session-state"] is None:
        entity.states.pop(body["session-id"], None)
    else:
        entity.states[body["session-id"]] = bytes(body["session-state"])
    return {}


def _dispose(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    tokens = _tokens(body)
    for token in tokens:
        entity.held(token)
    settle = {"completed": entity.complete, "abandoned": entity.abandon}.get(body["disposition-status"], entity.bury)
    for token in tokens:
        settle(token)
    return {}


def _schedule(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    numbers = []
    for each in body["messages"]:
        message = read_one(bytes(each["message"]))
        entity.put(message)
        numbers.append(message.number)
    return {"sequence-numbers": Array(_LONG, tuple(numbers))}


def _cancel(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    for number in _elements(body["sequence-numbers"]):
        if entity.later.pop(int(number), None) is None:
            raise Refused("com.microsoft:message-not-found", "the message is not scheduled")
    return {}


def _peek(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    first = int(body["from-sequence-number"])
    found = [each for number, each in entity.messages.items() if number >= first][: int(body["message-count"])]
    return {"messages": [{"message": write(each)} for each in found]}


_OPERATIONS = {
    "renew-lock": _renew,
    "renew-session-lock": _renew_session,
    "get-session-state": _get_state,
    "set-session-state": _set_state,
    "update-disposition": _dispose,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "peek-message": _peek,
}


def _tokens(body: dict[str, Any]) -> list[UUID]:
    return [UUID(bytes=each.bytes) for each in _elements(body.get("lock-tokens"))]


def _elements(array: Any) -> list[Any]:
    return list(array.values) if isinstance(array, Array) else list(array or [])


def _path_of(address: str) -> str:
    """Return what follows the host of an address."""
    _, scheme, rest = address.rpartition("://")
    return rest.partition("/")[2] if scheme else rest
