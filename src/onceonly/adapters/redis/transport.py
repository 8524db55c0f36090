"""A transport on Redis Streams: a stream and a consumer group for each endpoint.

A delivery is a pending entry of the group, held by a consumer for as long as its lease, which Redis counts itself (the idle
time). An entry whose lease has ended is claimed by the next receiver that looks, as a suspect. A release gives the entry to a
consumer `released`, with a higher count as a mark. An ack deletes the entry, so a stream contains what waits and what is held.

Delayed messages are in a sorted set next to the stream. Receivers move them when they are due, in the script that takes
deliveries.
Every change is one script, which Redis runs and logs as one step. So no crash can lose a message between two places.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from secrets import token_bytes, token_hex
from typing import Any, NamedTuple

from msgspec import Struct

from onceonly.adapters.redis import scripts
from onceonly.adapters.redis.address import GROUP, MOST_SENT, Keys, read_address
from onceonly.adapters.redis.client import failover, persistence, refuse_server, script_hash
from onceonly.adapters.redis.entries import from_entry, headers_of, to_entry
from onceonly.adapters.redis.link import LOST, Argument, Command, RedisLink, Waiter, is_missing_script
from onceonly.formats.cloudevents import arrival, encode
from onceonly.formats.log_events import EventLogger
from onceonly.formats.undecodable import report_unreadable
from onceonly.model.destination import Stream, read_destination
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown
from onceonly.model.limits import NAME_RULE, is_endpoint_name
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.deliveries import BackgroundCalls
from onceonly.queues.destinations import UnsubscribedEvents, report_unsent
from onceonly.queues.messages import queue_missing

__all__ = ["RedisReceipt", "RedisTransport"]

OLDEST = 7
"""The version whose XAUTOCLAIM drops entries that were deleted."""
LONGEST_PAUSE_SECONDS = 5.0
"""Seconds between two looks for leases that have ended, and after which a waiting receiver looks again in any case."""
LEASE_PARTS = 4
"""With a short lease, it is looked for ended ones after this part of it."""
SHORTEST_PAUSE_SECONDS = 0.001
FORGET_CONSUMERS_SECONDS = 3600
"""Seconds after which a consumer that holds nothing is deleted: its process has ended without closing its transport."""
CHECK_SECONDS = 30.0
"""Seconds between two checks of the server's settings."""
STRANDED_SECONDS = 60.0
"""Seconds between two searches for entries whose consumer was deleted."""
STRANDED_AT_ONCE, MOST_STRANDED_LOOKS = 100, 1000
"""Entries that one script looks at, with their bodies, and scripts of one search."""
_BYTES_AT_ONCE = 8 * 1024 * 1024
_FROM_THE_START = b"0-0"
_LOSS = "and messages that were sent are lost"


_log = EventLogger(logging.getLogger("onceonly.transport"))


class RedisReceipt(Struct, frozen=True, order=True):
    """Which entry, and which of its deliveries: a later one has another consumer or another count."""

    id: bytes
    consumer: bytes
    count: int


class _Taken(NamedTuple):
    """What a look at the queue found. Where it found no deliveries, how to wait for some."""

    deliveries: tuple[Delivery, ...]
    position: bytes = _FROM_THE_START
    woken: bytes = _FROM_THE_START
    due: float | None = None


class RedisTransport:
    """One endpoint's queue on a Redis server. Any number of processes may share it.

    Leases and delays follow the server's clock: those of the processes may differ. Without `server_time`, as in tests, `clock`
    decides when delayed messages are due.
    """

    def __init__(self, link: RedisLink, endpoint: str, *, clock: Clock | None = None, server_time: bool = True) -> None:
        address = link.address
        self.traits = address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._clock = None if server_time else clock
        self._all_keys = Keys(address.prefix)
        self._keys = self._all_keys.queue(endpoint)
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}".encode()
        self._interval = min(LONGEST_PAUSE_SECONDS, address.lease / LEASE_PARTS)
        self._background = BackgroundCalls()
        self._waiter = Waiter(link, self._keys, self._interval)
        self._lapse_at = 0.0
        self._cursor = _FROM_THE_START
        self._released_first = False
        self._has_received = False
        self._stranded_at = 0.0

    @staticmethod
    async def connect(url: str, _random: RandomSource) -> RedisLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return RedisLink(read_address(url))

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. A cancelled call releases what it has just taken.

        Raises CommitFailed, QueueMissing; a later call may work again.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        while True:
            look = await self._background.take(self._take(limit), lambda found: self.release(found.deliveries))
            left = end - clock()
            if look.deliveries or left <= 0:
                return look.deliveries
            pause = min(left, self._lapse_at - clock(), left if look.due is None else look.due)
            await self._waiter.wait(look.position, look.woken, max(SHORTEST_PAUSE_SECONDS, pause))

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send messages, many by one script; see the port. REFUSED also: a body over `max_body`, headers that are not text.

        UNKNOWN: the connection was lost, the server is out of memory, or too few replicas have answered. Raises CommitFailed if
        the server is away or has rejected all of them, SetupError for what a person must change.
        """
        answers: list[Answer] = []
        for part in _portions(sends):
            answers += await self._send(part)
        return tuple(answers)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete deliveries from the stream; one that another receiver holds by now is ignored."""
        for held in self._held(deliveries):
            await self._call("acknowledge messages", scripts.ACK, [self._keys.stream], [GROUP, self._consumer, *held])

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries; one that another receiver holds by now is ignored."""
        keys = [self._keys.stream, self._keys.released, self._keys.wake]
        for held in self._held(deliveries):
            self._report(await self._call("release messages", scripts.RELEASE, keys, [GROUP, self._consumer, *held]))

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        for held in self._held(deliveries):
            arguments = [GROUP, self._consumer, self._lease(), *held]
            await self._call("renew leases", scripts.EXTEND, [self._keys.stream], arguments)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create streams and groups, and change subscriptions; see the port. Each endpoint is one step.

        Raises SetupError for a server that evicts or is a replica.
        """
        await self._server_info()
        for topology in topologies:
            keys = self._all_keys.queue(topology.endpoint)
            idle = FORGET_CONSUMERS_SECONDS * 1000
            events = topology.events
            changes: list[bytes | str | int] = [
                self._all_keys.start,
                GROUP,
                topology.endpoint,
                idle,
                len(events),
                *events,
                *topology.gone,
            ]
            what = f"declare queue {topology.endpoint!r}"
            await self._call(what, scripts.DECLARE, [keys.stream, keys.subscriptions], changes)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        keys = self._all_keys.queue(endpoint)
        arguments = (GROUP, self._lease(), self._now())
        counted = await self._call("count messages", scripts.DEPTH, [keys.stream, keys.delayed], arguments, definite=True)
        if counted == -1:
            raise queue_missing(f"queue {endpoint!r}")
        return Depth(waiting=counted[0], held=counted[1], delayed=counted[2])

    async def check(self) -> BrokerReport:
        """Read how the server stores what it has acknowledged; see the protocol."""
        about = await self._server_info()
        try:
            fsync = await self._link.setting("appendfsync")
        except LOST as error:
            raise self._link.translate(error, what="check the server", definite=True) from error
        warnings = persistence(about, fsync, loss=_LOSS)
        replicas = self._link.address.replicas
        if not replicas:
            warnings += failover(about, loss=_LOSS)
        known = {
            "appendonly": "yes" if about.get("aof_enabled") else "no",
            "appendfsync": fsync or "unknown",
            "maxmemory-policy": str(about.get("maxmemory_policy")),
            "connected_slaves": str(about.get("connected_slaves", 0)),
            "replicas": str(replicas),
        }
        return BrokerReport(settings=tuple(known.items()), warnings=warnings, again_after=CHECK_SECONDS)

    async def subscriptions(self, endpoint: str) -> frozenset[str]:
        key = self._all_keys.queue(endpoint).subscriptions
        try:
            (found,) = await self._link.pipeline([("SMEMBERS", key)])
        except LOST as error:
            raise self._link.translate(error, what="list subscriptions", definite=True) from error
        if isinstance(found, Exception):
            raise self._link.translate(found, what="list subscriptions", definite=True) from found
        return frozenset(kind for each in found if (kind := self._type_of(each)) is not None)

    def _type_of(self, stored: bytes) -> str | None:
        try:
            return stored.decode()
        except UnicodeDecodeError:
            report_unreadable(self._endpoint, "subscribed type", stored, "ignored: it is not UTF-8. Remove it from its set")
            return None

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues with all that is in them, and the subscriptions to their events: for demos and tests."""
        commands: list[Command] = []
        for topology in topologies:
            queue = self._all_keys.queue(topology.endpoint)
            kinds = {*topology.events, *await self.subscriptions(topology.endpoint)}
            commands += [("SREM", self._all_keys.subscribers(kind), topology.endpoint) for kind in kinds]
            commands.append(("UNLINK", queue.stream, queue.delayed, queue.released, queue.wake, queue.subscriptions))
        if commands:
            await self._link.pipeline(commands)

    async def close(self) -> None:
        """Stop waiting, and delete the consumer of this transport if it holds nothing."""
        await self._waiter.close()
        await self._background.close()
        if self._has_received:
            with suppress(OnceOnlyError):
                await self._call("leave the group", scripts.LEAVE, [self._keys.stream], [GROUP, self._consumer])

    # Receiving

    async def _take(self, limit: int) -> _Taken:
        clock = asyncio.get_running_loop().time
        if clock() >= self._stranded_at:
            self._stranded_at = clock() + STRANDED_SECONDS
            await self._find_stranded()
        keys, looks_for_lapsed = self._keys, clock() >= self._lapse_at
        self._has_received = True
        self._released_first = not self._released_first  # else what is released again and again holds up all others
        cursor = self._cursor if looks_for_lapsed else b""
        found = await self._call(
            f"receive from queue {self._endpoint!r}",
            scripts.TAKE,
            [keys.stream, keys.delayed, keys.released, keys.wake],
            [GROUP, self._consumer, limit, self._lease(), cursor, int(self._released_first), self._now()],
            definite=True,
        )
        if looks_for_lapsed:
            self._cursor = found[1]
            if self._cursor == _FROM_THE_START:
                self._lapse_at = clock() + self._interval
        self._report(found[2])
        values = found[0]
        deliveries = tuple(map(self._delivery, values[::2], values[1::2]))
        if deliveries:
            return _Taken(deliveries)
        position, woken, due, full = found[3:]
        if full:
            raise CommitFailed(f"cannot deliver delayed messages at {self._link.address.place}: {full.decode()}")
        return _Taken((), position, woken, None if due < 0 else due / 1000)

    def _report(self, foreign: Sequence[bytes]) -> None:
        for key in foreign:
            report_unreadable(self._endpoint, "key", key, "another program uses it: delete it, or set another prefix=")

    async def _find_stranded(self) -> None:
        """Find entries whose consumer was deleted, to be delivered again. Raises nothing: receiving reports errors."""
        cursor, count = b"", 0
        try:
            for _ in range(MOST_STRANDED_LOOKS):
                arguments: list[bytes | str | int] = [GROUP, cursor, STRANDED_AT_ONCE]
                found, cursor = await self._call("find deliveries", scripts.FIND_STRANDED, [self._keys.stream], arguments)
                count += found
                if not cursor:
                    break
        except OnceOnlyError as error:
            _log.debug("search for stranded entries failed", extra={"endpoint": self._endpoint, "reason": str(error)})
        if count:
            _log.warning("entries of a deleted consumer found", extra={"endpoint": self._endpoint, "count": count})

    def _delivery(self, packed: bytes, body: bytes) -> Delivery:
        id_, counted, *fields = from_entry(packed)
        count = int(counted)
        receipt = RedisReceipt(id_.encode(), self._consumer, count)
        return arrival(receipt, self._endpoint, headers_of(fields), body, suspect=count % scripts.STEP > 1)

    def _held(self, deliveries: Sequence[Delivery]) -> Iterator[list[bytes | str | int]]:
        """Name the deliveries of this transport in the arguments of scripts."""
        receipts = [each.receipt for each in deliveries if isinstance(each.receipt, RedisReceipt)]
        mine = [each for each in receipts if each.consumer == self._consumer]
        for start in range(0, len(mine), MOST_SENT):
            yield [value for each in mine[start : start + MOST_SENT] for value in (each.id, each.count)]

    # Sending

    async def _send(self, sends: Sequence[Send]) -> list[Answer]:
        packed = [self._packed(send) for send in sends]
        results = iter(await self._results([each for each in packed if each is not None]))
        found = [Answer.REFUSED if each is None else next(results) for each in packed]
        answers = [each if isinstance(each, Answer) else _answer(each) for each in found]
        errors = [each for each in found if isinstance(each, Exception)]
        if errors and Answer.TAKEN not in answers:
            raise self._link.translate(errors[0], what="send messages") from errors[0]
        for send, result, answer in zip(sends, found, answers, strict=True):
            if isinstance(result, Exception):
                report_unsent(self._endpoint, send.to or send.message.type, self._link.translate(result, what="send messages"))
            if answer is Answer.TAKEN and result == 0:
                self.unsubscribed.add(send.message.type)
        return answers

    async def _results(self, packed: list[tuple[Argument, ...]]) -> Sequence[Any]:
        """Send messages by one script. Return for each what the script answered, an error, or an `Answer`."""
        if not packed:
            return ()
        arguments = (self._all_keys.start, self._now(), *(value for each in packed for value in each))
        script: Command = ("EVALSHA", _SEND_HASH, 1, self._keys.stream, *arguments)
        replicas, timeout = self._link.address.replicas, self._link.address.timeout
        commands: list[Command] = [script, ("WAIT", replicas, int(timeout * 500))] if replicas else [script]
        try:
            results = await self._link.pipeline(commands)
            if is_missing_script(results[0]):
                await self._link.load(scripts.SEND)
                results = await self._link.pipeline(commands)
        except LOST as error:
            translated = self._link.translate(error, what="send messages")
            if isinstance(translated, OutcomeUnknown):
                return [Answer.UNKNOWN] * len(packed)
            raise translated from error
        sent, confirmed = results[0], results[-1] if replicas else replicas
        if isinstance(sent, Exception):
            return [sent] * len(packed)
        sent, odd = sent
        for name in odd:
            report_unreadable(self._endpoint, "subscriber", name, f"ignored: {NAME_RULE}. Remove it from its set")
        if isinstance(confirmed, int) and confirmed >= replicas:
            return list(sent)
        return [Answer.UNKNOWN if _answer(each) is Answer.TAKEN else each for each in sent]

    def _packed(self, send: Send) -> tuple[Argument, ...] | None:
        """Return what the script needs of a message; None when it can never be taken."""
        target = _target(send.to, send.message.type)
        if len(send.message.body) > self.traits.max_body or target is None:
            return None
        headers, body = encode(send)
        packed = to_entry(headers)
        if packed is None:
            return None
        due: tuple[Argument, Argument] = (send.due, token_bytes(scripts.ID_BYTES)) if send.due else ("", "")
        return (*target, *due, packed, body)

    # The server

    async def _server_info(self) -> dict[str, Any]:
        """Return what the server says about itself. Raises SetupError for one that loses messages in normal operation."""
        address = self._link.address
        try:
            about = await self._link.info()
        except LOST as error:
            raise self._link.translate(error, what="check the server", definite=True) from error
        refuse_server(about, address.place, oldest=OLDEST, evicted="queues when memory is full, and messages are lost")
        return about

    async def _call(
        self,
        what: str,
        script: str,
        keys: Sequence[bytes],
        arguments: Sequence[bytes | str | int],
        *,
        definite: bool = False,
    ) -> Any:
        try:
            return await self._link.run(script, keys, arguments)
        except LOST as error:
            raise self._link.translate(error, what=what, definite=definite) from error

    def _lease(self) -> int:
        return int(self._link.address.lease * 1000)

    def _now(self) -> str | int:
        return "" if self._clock is None else self._clock.now()


_SEND_HASH = script_hash(scripts.SEND)


def _answer(result: object) -> Answer:
    """Return what became of a message, from what Redis answered. No error proves that a message can never be taken."""
    if isinstance(result, Answer):
        return result
    if isinstance(result, Exception):
        return Answer.UNKNOWN
    return Answer.REFUSED if result == -1 else Answer.TAKEN


def _target(to: str, kind: str) -> tuple[str, str] | None:
    """Return what the script sends to, and what goes with it. None for what Redis does not have.

    An endpoint or "" for an event, with the type; or a stream of another program, with the field that has the body.
    """
    if not to or is_endpoint_name(to):
        return to, kind
    found = read_destination(to)
    return (scripts.OTHERS + found.name, found.field) if isinstance(found, Stream) else None


def _portions(sends: Sequence[Send]) -> Iterator[Sequence[Send]]:
    """Divide sends among scripts: the server does nothing else meanwhile."""
    part: list[Send] = []
    size = 0
    for send in sends:
        part.append(send)
        size += len(send.message.body)
        if len(part) >= MOST_SENT or size >= _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
