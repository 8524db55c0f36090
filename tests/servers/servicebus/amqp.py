"""The connections of the stand-in: Proton's protocol engine on asyncio."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID

from proton import (
    UNDESCRIBED,
    Array,
    Collector,
    Condition,
    Connection,
    Data,
    Delivery,
    Disposition,
    Endpoint,
    Event,
    Link,
    Message,
    Transport,
    symbol,
    timestamp,
)
from proton import int32 as int_

from tests.servers.servicebus.entities import Entity, Namespace, Refused
from tests.servers.servicebus.wire import read_batch, read_one, tag_of, write

TICKS = 621_355_968_000_000_000  # .NET's ticks at the beginning of 1970
MAX_MESSAGE = 1024 * 1024
SESSION_FILTER = symbol("com.microsoft:session-filter")


class Broker:
    """Everything that connections share. Tests set how it fails: `refusals` by path, and `silent` to confirm nothing."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.peers: set[Peer] = set()
        self.refusals: dict[str, Refused] = {}
        self.silent = False
        self.requests: list[str] = []

    def serve(self) -> "Peer":
        """Make the protocol of one connection."""
        return Peer(self)

    def store(self, path: str, raw: bytes) -> None:
        """Store what one transfer brings. Raises Refused."""
        if (refused := self.refusals.get(path.lower())) is not None:
            raise refused
        if path.lower() not in self.namespace.topics and self.namespace.find(path) is None:
            raise Refused("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        self.namespace.send(path, read_batch(raw))

    def pump(self) -> None:
        """Deliver what waits to those who asked for it."""
        self.namespace.move()
        for peer in tuple(self.peers):
            peer.pump()

    def disconnect(self) -> None:
        """Cut every connection."""
        for peer in tuple(self.peers):
            peer.cut()


class Peer(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._engine = Transport(Transport.SERVER)
        self._engine.sasl().allowed_mechs("ANONYMOUS PLAIN")
        self._connection = Connection()
        self._collector = Collector()
        self._connection.collect(self._collector)
        self._engine.bind(self._connection)
        self._io: asyncio.Transport | None = None
        self._senders: dict[Link, Entity | None] = {}
        self._sessions: dict[Link, str] = {}
        self._waiting: dict[Link, str | None] = {}
        self._paths: dict[Link, str] = {}
        self._held: dict[Delivery, tuple[Entity, UUID]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._io = transport
        self._broker.peers.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Read what has come, act, and answer."""
        while data:
            capacity = self._engine.capacity()
            if capacity <= 0:
                break
            used = self._engine.push(data[:capacity])
            data = data[used if isinstance(used, int) and used > 0 else capacity :]
            self._work()
        self._flush()
        self._broker.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what the client asked for. Its locks stay until they end; its sessions are given up."""
        self._broker.peers.discard(self)
        for link, session in self._sessions.items():
            entity = self._senders.get(link)
            if entity is not None:
                entity.close_session(session, counts=False)
        self._senders.clear()
        self._waiting.clear()

    def cut(self) -> None:
        """Cut the connection."""
        if self._io is not None:
            self._io.abort()

    def pump(self) -> None:
        """Deliver to every link with credit."""
        for link, wanted in tuple(self._waiting.items()):
            self._accept_session(link, wanted)
        for link, entity in tuple(self._senders.items()):
            if entity is None:
                continue
            while link.credit > 0 and (message := entity.take(link, self._sessions.get(link))) is not None:
                assert message.token is not None
                delivery = link.delivery(tag_of(message.token))
                link.send(write(message))
                link.advance()
                self._held[delivery] = entity, message.token
            if link.drain_mode:
                link.drained()
        self._flush()

    def _flush(self) -> None:
        self._work()
        while (pending := self._engine.pending()) > 0:
            if self._io is not None and not self._io.is_closing():
                self._io.write(self._engine.peek(pending))
            self._engine.pop(pending)
            self._work()
        if pending < 0 and self._io is not None:
            self._io.close()

    def _work(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._act(event)
            self._collector.pop()

    def _act(self, event: Event) -> None:
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            event.connection.container = "stand-in"
            event.connection.open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif kind in (Event.SESSION_REMOTE_CLOSE, Event.CONNECTION_REMOTE_CLOSE):
            event.context.close()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self._detach(event.link)
        elif kind == Event.DELIVERY:
            self._delivery(event.delivery)

    # Links

    def _attach(self, link: Link) -> None:
        terminus = link.remote_source if link.is_sender else link.remote_target
        path = _path_of(terminus.address or "")
        refused = self._broker.refusals.get(path.lower())
        if refused is None and not self._exists(path, receives=link.is_sender):
            refused = Refused("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        if refused is not None and not path.startswith("$"):
            link.open()
            link.condition = Condition(refused.condition, refused.why)
            link.close()
            return
        self._paths[link] = path
        entity = self._broker.namespace.find(path) if link.is_sender else None
        if entity is not None and entity.has_sessions:
            wanted = _session_of(link)
            self._waiting[link] = wanted
            self._accept_session(link, wanted)
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.max_message_size = MAX_MESSAGE
        link.open()
        if link.is_sender:
            self._senders[link] = entity
        else:
            link.flow(1000)

    def _accept_session(self, link: Link, wanted: str | None) -> None:
        entity = self._broker.namespace.find(self._paths[link])
        session = None if entity is None else entity.free_session(wanted)
        if session is None or entity is None:
            return
        del self._waiting[link]
        entity.sessions[session] = link
        self._sessions[link] = session
        self._senders[link] = entity
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        filters = Data()
        filters.put_dict({SESSION_FILTER: session})
        link.source.filter.copy(filters)
        until = entity.now() + entity.lock_ms
        link.properties = {symbol("com.microsoft:locked-until-utc"): until * 10_000 + TICKS}
        link.open()

    def _detach(self, link: Link) -> None:
        entity, session = self._senders.pop(link, None), self._sessions.pop(link, None)
        self._waiting.pop(link, None)
        if entity is not None and session is not None:
            entity.close_session(session, counts=False)
        if link.state & Endpoint.LOCAL_ACTIVE:
            link.close()

    def _exists(self, path: str, *, receives: bool) -> bool:
        entity = path.removesuffix("/$management")
        namespace = self._broker.namespace
        if path == "$cbs" or (receives and entity == path and namespace.find(path) is not None):
            return True
        if entity != path or not receives:
            return entity.lower() in namespace.topics or namespace.find(entity) is not None
        return False

    # Transfers

    def _delivery(self, delivery: Delivery) -> None:
        link = delivery.link
        if link.is_receiver and delivery.readable and not delivery.partial:
            raw = link.recv(delivery.pending)
            link.advance()
            link.flow(1)
            self._received(link, delivery, raw)
        elif link.is_sender and delivery.updated:
            self._settled(delivery)

    def _received(self, link: Link, delivery: Delivery, raw: bytes) -> None:
        path = self._paths.get(link, "")
        if path == "$cbs":
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            self._authorize(link, raw)
            return
        if path.endswith("/$management"):
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            self._manage(link, path, raw)
            return
        self._broker.requests.append("send")
        try:
            self._broker.store(path, raw)
        except Refused as error:
            delivery.local.condition = Condition(error.condition, error.why)
            delivery.update(Delivery.REJECTED)
        else:
            if self._broker.silent:
                self.cut()
                return
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()

    def _authorize(self, link: Link, raw: bytes) -> None:
        """Answer to a token: the service refuses one for an entity that does not exist."""
        request = Message()
        request.decode(raw)
        entity = _path_of((request.properties or {}).get("name", ""))
        status, why = 202, "Accepted"
        if (
            not self._exists(entity.removesuffix("/$management"), receives=True)
            and entity.lower() not in self._broker.namespace.topics
        ):
            status, why = 404, f"The messaging entity '{entity}' could not be found."
        self._reply(link, Message(), raw, {"status-code": int_(status), "status-description": why})

    def _settled(self, delivery: Delivery) -> None:
        held = self._held.pop(delivery, None)
        if held is None:
            return
        entity, token = held
        state = delivery.remote_state
        with suppress(Refused):
            if state == Disposition.ACCEPTED:
                entity.complete(token)
            elif state == Disposition.RELEASED:
                entity.abandon(token, counts=False)
            elif state == Disposition.REJECTED:
                entity.bury(token)
            elif state == Disposition.MODIFIED:
                entity.abandon(token, counts=bool(delivery.remote.failed))
        delivery.update(state)
        delivery.settle()

    # Management

    def _manage(self, link: Link, path: str, raw: bytes) -> None:
        request = Message()
        request.decode(raw)
        operation = (request.properties or {}).get("operation", "").removeprefix("com.microsoft:")
        self._broker.requests.append(operation)
        entity = self._broker.namespace.find(path.removesuffix("/$management"))
        answer = Message()
        try:
            answer.body = operate(entity, operation, request.body or {})
            properties = {"statusCode": int_(200), "statusDescription": "OK"}
        except Refused as error:
            status = 404 if "not-found" in error.condition else 410
            condition = symbol(error.condition)
            properties = {"statusCode": int_(status), "statusDescription": error.why, "errorCondition": condition}
        self._reply(link, answer, raw, properties)

    def _reply(self, link: Link, answer: Message, raw: bytes, properties: dict[str, Any]) -> None:
        """Send an answer on the link of this session that receives from the same node."""
        request = Message()
        request.decode(raw)
        answer.correlation_id = request.id
        answer.properties = properties
        path = self._paths[link]
        for reply in tuple(self._paths):
            if reply.is_sender and self._paths[reply] == path and reply.session == link.session:
                delivery = reply.delivery(reply.delivery_tag().encode())
                reply.send(answer.encode())
                reply.advance()
                delivery.settle()


def operate(entity: Entity | None, operation: str, body: dict[str, Any]) -> dict[str, Any]:
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
    return {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *[timestamp(entity.renew(token)) for token in tokens])}


def _renew_session(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    if body["session-id"] not in entity.sessions:
        raise Refused("com.microsoft:session-lock-lost", "the session lock has expired")
    for message in entity.messages.values():
        if message.session == body["session-id"] and message.token is not None:
            message.until = entity.now() + entity.lock_ms
    return {"expiration": timestamp(entity.now() + entity.lock_ms)}


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
    return {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}


def _cancel(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    for number in _elements(body["sequence-numbers"]):
        if entity.messages.pop(int(number), None) is None:
            raise Refused("com.microsoft:message-not-found", "the message is not scheduled")
    return {}


def _peek(entity: Entity, body: dict[str, Any]) -> dict[str, Any]:
    first = int(body["from-sequence-number"])
    found = [each for number, each in entity.messages.items() if number >= first][: int(body["message-count"])]
    return {"messages": [{"message": write(each)} for each in found]}


_OPERATIONS = {
    "renew-lock": _renew,
    "renew-session-lock": _renew_session,
    "update-disposition": _dispose,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "peek-message": _peek,
}


def _tokens(body: dict[str, Any]) -> list[UUID]:
    return [UUID(bytes=each.bytes) for each in _elements(body.get("lock-tokens"))]


def _elements(array: Any) -> list[Any]:
    if array is None:
        return []
    return list(getattr(array, "elements", array))


def _path_of(address: str) -> str:
    """Return what follows the host of an address."""
    _, scheme, rest = address.rpartition("://")
    return rest.partition("/")[2] if scheme else rest


def _session_of(link: Link) -> str | None:
    filters = link.remote_source.filter
    filters.rewind()
    if not filters.next():
        return None
    found: Any = dict(filters.get_object()).get(SESSION_FILTER)
    return getattr(found, "value", found)
