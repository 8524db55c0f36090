"""NATS: one connection that comes back, requests with many answers at once, and what the server's errors mean.

The driver is nats-py, without its own reconnect and its JetStream context. This publishes many messages in one write, reads
headers as bytes, and gives what arrives to its receiver without a queue and a task in between.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.errors import AuthorizationError, Error

from onceonly.adapters.nats.address import HEADER_BYTES, NatsAddress
from onceonly.formats.undecodable import shown
from onceonly.model.errors import CommitFailed, OnceOnlyError, SetupError
from onceonly.ports.environment import RandomSource
from onceonly.queues.destinations import SILENT_SECONDS, CopyOutcome, SilentDestinations
from onceonly.queues.names import tls_context
from onceonly.queues.reconnection import Reconnection

CONNECT_SECONDS = 10.0  # for an attempt, or less by `timeout=`
CLOSE_SECONDS = 2.0  # to close something politely
PINGS = 2  # without an answer mean that the server is gone
PROBE_SECONDS = 5.0  # or less by `timeout=`: for an answer that shows that a connection works
API = "$JS.API."
_NO_RESPONDERS = b"NATS/1.0 503"
_NOT_FOUND = frozenset({10014, 10037, 10059})  # consumer, message, stream
_TEMPORARY = frozenset({10008, 10009, 10023, 10047, 10074})  # JetStream or its cluster is away, or has no room at the moment
_TOO_LARGE = frozenset({10054, 10097})  # the message, its headers
_DISABLED = frozenset({10035, 10039, 10076})
_REMEDIES = {
    10058: "It exists with other settings: delete it, or use other names with the option prefix=",
    10065: "Another stream has this subject: delete that stream, or use other names with the option prefix=",
    10074: "Use fewer replicas, or add servers to the cluster",
}
_SERIAL = count(1)

if logging.getLogger("nats.aio.client").level == logging.NOTSET:
    # An outage is this library's to tell, once; the driver tells it, with tracebacks, at every attempt.
    logging.getLogger("nats.aio.client").setLevel(logging.CRITICAL)


class NatsArrival(Struct, frozen=True):
    """What the server delivered: a message or an answer."""

    subject: bytes
    reply: bytes
    headers: bytes
    body: bytes

    @property
    def has_no_responders(self) -> bool:
        """Whether it means that no stream and no other receiver has the subject."""
        return self.headers.startswith(_NO_RESPONDERS)


Sink: TypeAlias = Callable[[NatsArrival], None]


class ApiError(Struct):
    """An error of JetStream."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _PublishAnswer(Struct):
    error: ApiError | None = None
    seq: int = 0


class NatsRequest(Struct, frozen=True):
    """One message to send that has an answer. `stream` is what answers, where one stream has many subjects."""

    subject: str
    body: bytes = b""
    headers: bytes = b""
    stream: str = ""

    @property
    def destination(self) -> str:
        return self.stream or self.subject


LONGEST_SUBJECT = 2000
"""Bytes of a subject that is written: a server closes the connection for a line of more than 4096, which has two."""
_is_subject = re.compile(rb"[^\x00-\x20\x7f]{1,%d}" % LONGEST_SUBJECT).fullmatch


_Answer = TypeVar("_Answer")


def read_answer(response: Mapping[str, Any], kind: type[_Answer]) -> _Answer:
    """Read a response of JetStream. Raises CommitFailed for one that is not as documented."""
    try:
        return msgspec.convert(response, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CommitFailed(f"an answer is not JetStream's: {error}") from error


def written_subject(subject: str) -> bytes:
    """Return a subject for a line of the protocol.

    Raises ValueError for one with a blank or a control character: what stands behind it would be read as another part of the
    command, or as a command of its own.
    """
    try:
        written = subject.encode()
    except UnicodeEncodeError:
        written = b""
    if not _is_subject(written):
        raise ValueError(f"not a subject of NATS: {shown(subject)}")
    return written


class NatsLink:
    """One connection to a cluster, shared by what a process has there; see `Reconnection`."""

    def __init__(self, address: NatsAddress, random: RandomSource) -> None:
        self.address = address
        self._reconnection = Reconnection(self._connect, NatsConnection.close, random)
        self._silent = SilentDestinations()

    async def connection(self) -> "NatsConnection":
        """Connect if need be. Raises CommitFailed when the servers are away, SetupError when one refuses."""
        known = self._reconnection.current
        if known is not None and known.is_open and not self._reconnection.is_closed:
            return known
        made = asyncio.ensure_future(self._reconnection.get())  # a caller that is cancelled leaves no half-open connection
        made.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(made)

    @property
    def max_payload(self) -> int:
        """The bytes of headers and body that the server takes; what the URL needs where it was not asked yet."""
        known = self._reconnection.current
        return self.address.max_body + HEADER_BYTES if known is None else known.max_payload

    async def publish(self, requests: Sequence[NatsRequest]) -> list[CopyOutcome]:
        """Publish all at once and wait for every answer of a stream. Raises CommitFailed when the servers are away.

        MISSING: no stream that is available has the subject.
        """
        if not requests:
            return []
        answers = await self.ask(requests)
        return [_outcome(answer) for answer in answers]

    async def ask(self, requests: Sequence[NatsRequest]) -> list[NatsArrival | str]:
        """Send all at once and wait for one answer to each; a text says why there is none.

        A destination that was silent before is waited for only as long as the others take. Raises CommitFailed when the servers
        are away. Drops a connection on which nothing is answered.
        """
        connection = await self.connection()
        answers, silent = await connection.ask(requests, self.address.timeout)
        if silent and (any(isinstance(answer, NatsArrival) for answer in answers) or await self.works(connection)):
            self._silent.add(silent)
            connection.end_waits()
        return answers

    async def works(self, connection: "NatsConnection") -> bool:
        """Return whether the server answers on a connection. Drops one on which it does not.

        Pings may still be answered on that. While the server answers other requests, silence is about one destination.
        """
        _, silent = await connection.ask([NatsRequest(f"{API}STREAM.NAMES")], min(self.address.timeout, PROBE_SECONDS))
        if silent or not connection.is_open:
            await self.drop(connection)
            return False
        return True

    async def api(self, subject: str, request: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Call the API of JetStream. Returns its response, or None when what it names does not exist.

        Raises CommitFailed or SetupError. A call without an answer may have been carried out: all that are made here can be
        repeated.
        """
        (answer,) = await self.ask([NatsRequest(API + subject, msgspec.json.encode(request) if request else b"")])
        what = f"call {API}{subject}"
        if isinstance(answer, str):
            if answer.startswith("permission"):
                raise SetupError(f"cannot {what}: {answer}. Grant this user the permission")
            raise CommitFailed(f"cannot {what}: {answer}")
        if answer.has_no_responders:
            raise self._without_jetstream(what)
        try:
            response = _decode_response(answer.body)
            error = msgspec.convert(response["error"], ApiError) if "error" in response else None
        except (msgspec.MsgspecError, ValueError, RecursionError) as odd:
            raise CommitFailed(f"cannot {what}: the answer is not JetStream's: {odd}") from odd
        if error is None:
            return response
        if error.err_code in _NOT_FOUND:
            return None
        text = f"cannot {what}: {error.description} ({error.err_code})"
        if error.err_code in _DISABLED:
            raise SetupError(f"{text}. Enable JetStream for the account of this user")
        if error.err_code in _TEMPORARY or (error.code >= 500 and error.err_code not in _REMEDIES):  # noqa: PLR2004 - as HTTP
            raise CommitFailed(text)
        raise SetupError(f"{text}. {_REMEDIES.get(error.err_code, 'Correct the stream or the URL')}")

    async def drop(self, connection: "NatsConnection | None" = None) -> None:
        """Close the connection; the next call makes a new one. With `connection`: only if it is still that one."""
        if connection is None or connection is self._reconnection.current:
            await self._reconnection.drop()

    async def close(self) -> None:
        await self._reconnection.close()

    def _without_jetstream(self, what: str) -> OnceOnlyError:
        known = self._reconnection.current
        if known is not None and not known.has_jetstream:
            return SetupError(f"cannot {what}: JetStream is not enabled at {self.address.place}. Start nats-server with -js")
        return CommitFailed(f"cannot {what}: JetStream does not answer at {self.address.place}")

    async def _connect(self) -> "NatsConnection":
        address, problem = self.address, ""
        for server in address.servers:
            connection = NatsConnection(self._silent)
            try:
                async with asyncio.timeout(min(address.timeout, CONNECT_SECONDS)):
                    await connection.open(server, address)
            except TimeoutError:
                problem = "no answer"
            except (Error, OSError) as error:
                problem = str(error) or type(error).__name__
                if setup := _setup_problem(error):
                    raise SetupError(f"cannot connect to {address.place}: {setup}") from error
            else:
                needed = address.max_body + HEADER_BYTES
                if connection.max_payload >= needed:
                    return connection
                await connection.close()
                raise SetupError(
                    f"{address.place} takes messages of {connection.max_payload:,} bytes (max_payload), and bodies of"
                    f" {address.max_body:,} bytes with headers need {needed:,}. Raise max_payload, or set a lower max_body="
                )
            await connection.close()
        raise CommitFailed(f"cannot connect to {address.place}: {problem}")


class NatsConnection:
    """One connection to one server, and what waits for answers on it."""

    def __init__(self, silent: SilentDestinations) -> None:
        self.serial = next(_SERIAL)
        self._silent = silent
        self._client = _Client(self._refused)
        self._batches: dict[bytes, _Batch] = {}
        self._numbers = count(1)
        self._prefix = b""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return self._client.is_connected and not self.lost.done()

    @property
    def max_payload(self) -> int:
        """The bytes of headers and body that a message may have."""
        return int(self._client.max_payload)

    @property
    def has_jetstream(self) -> bool:
        return bool(self._client.server_info.get("jetstream"))

    @property
    def version(self) -> str:
        return str(self._client.server_info.get("version", ""))

    async def open(self, server: str, address: NatsAddress) -> None:
        """Connect, and listen for answers. Raises what the driver raises."""
        options: dict[str, Any] = {"tls": _context(address)} if address.secure else {}
        if address.creds:
            options["user_credentials"] = address.creds
        elif address.password is not None:
            options |= {"user": address.user, "password": address.password}
        elif address.user:
            options["token"] = address.user
        await self._client.connect(
            server,
            name="onceonly",
            allow_reconnect=False,
            connect_timeout=max(1, round(min(address.timeout, CONNECT_SECONDS))),
            ping_interval=max(1, round(address.timeout / (PINGS + 1))),
            max_outstanding_pings=PINGS,
            error_cb=self._client.note,
            closed_cb=self._closed,
            disconnected_cb=self._closed,
            **options,
        )
        inbox = self._client.new_inbox()
        self._prefix = inbox.encode() + b"."
        await self._client.listen(f"{inbox}.>", self._answer)

    async def ask(self, requests: Sequence[NatsRequest], patience: float) -> tuple[list[NatsArrival | str], frozenset[str]]:
        """Send all in one write; see `Link.ask`. Returns also the destinations that did not answer in this time."""
        name = b"%x" % next(self._numbers)
        batch = _Batch(requests, self._silent)
        reply, commands = self._prefix + name + b".", []
        for number, request in enumerate(requests):
            try:
                commands.append(_publish(request, reply + b"%x" % number, self.max_payload))
            except ValueError as error:
                batch.put(number, _Unsendable(error))
        self._batches[name] = batch
        clock = asyncio.get_running_loop()
        try:
            await self.write(b"".join(commands))
            timer = clock.call_later(min(patience, SILENT_SECONDS) if batch.is_silent else patience, batch.expire)
            try:
                await batch.done
            finally:
                timer.cancel()
        finally:
            if batch.is_complete:
                del self._batches[name]
            else:  # a destination that answers late is trusted again
                clock.call_later(patience, self._batches.pop, name)
        over = not self.lost.done()
        why = "no answer in time" if over else "the connection was lost"
        silent = frozenset(batch.unanswered()) if over and batch.is_expired else frozenset[str]()
        return [why if answer is None else answer for answer in batch.answers], silent

    def end_waits(self) -> None:
        """End each wait in which only destinations are left that are silent."""
        for batch in self._batches.values():
            batch.end_if_silent()

    async def write(self, data: bytes) -> None:
        """Write commands. Nothing is written when the connection is lost."""
        if self.is_open:
            await self._client.send(data)

    async def subscribe(self, sink: Sink) -> tuple[int, str]:
        """Listen at a new inbox; gives the number of the subscription and the subject."""
        inbox = self._client.new_inbox()
        return await self._client.listen(inbox, sink), inbox

    async def unsubscribe(self, number: int, *, patience: float) -> bool:
        """End a subscription. Returns whether it is certain that all that was delivered to its inbox has arrived."""
        confirmed = False
        if self.is_open:
            await self._client.send(b"UNSUB %d\r\n" % number)
            with suppress(Error, TimeoutError, OSError):
                await self._client.flush(timeout=max(1, round(patience)))
                confirmed = True
        self._client.sinks.pop(number, None)
        return confirmed

    async def close(self) -> None:
        self._end()
        with suppress(Exception):  # whatever the driver says: nothing is in flight that matters
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.close()

    def _answer(self, arrival: NatsArrival) -> None:
        name, _, number = arrival.subject[len(self._prefix) :].partition(b".")
        batch = self._batches.get(name)
        if batch is not None and _is_number(number):  # others may publish to this inbox, too
            batch.put(int(number, 16), arrival)

    def _refused(self, text: str) -> None:
        for batch in self._batches.values():
            batch.refuse(text)

    async def _closed(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        for batch in self._batches.values():
            batch.end()


class _Unsendable(str):
    """Why a request was not sent."""

    __slots__ = ()


class _Batch:
    """Requests whose answers are waited for together: not for those of silent destinations alone, if there are others."""

    def __init__(self, requests: Sequence[NatsRequest], silent: SilentDestinations) -> None:
        self.answers: list[NatsArrival | str | None] = [None] * len(requests)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_expired = False
        self._requests = requests
        self._silent = silent
        self._left = len(requests)
        self._awaited = self._trusted()
        self.is_silent = not self._awaited
        if self.is_silent:
            self._awaited = set(range(len(requests)))

    @property
    def is_complete(self) -> bool:
        return not self._left

    def unanswered(self) -> Iterator[str]:
        return (request.destination for request, each in zip(self._requests, self.answers, strict=True) if each is None)

    def put(self, number: int, answer: NatsArrival | str) -> None:
        if number >= len(self.answers):
            return
        if self.answers[number] is None:
            self._left -= 1
        self.answers[number] = answer
        self._awaited.discard(number)
        if self._silent and isinstance(answer, NatsArrival):
            self._silent.discard(self._requests[number].destination)
        if not self._awaited:
            self.end()

    def end_if_silent(self) -> None:
        """End the wait if only destinations are left that are silent by now."""
        if not self.is_silent:
            self._awaited &= self._trusted()
            if not self._awaited:
                self.end()

    def refuse(self, text: str) -> None:
        """Note that the server refuses to let this user publish; the text names the subject, in lower case."""
        for number, request in enumerate(self._requests):
            subject = request.subject.lower()
            if f'publish to "{subject}"' in text and self.answers[number] is None:
                self.put(number, f'permission to publish to "{subject}" is missing')

    def expire(self) -> None:
        self.is_expired = not self.done.done()
        self.end()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _trusted(self) -> set[int]:
        silent = self._silent
        return {number for number, each in enumerate(self._requests) if not silent or each.destination not in silent}


class _Client(Client):
    """The driver's client, which gives what arrives to sinks, as it came."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        super().__init__()
        self.sinks: dict[int, Sink] = {}
        self._on_refused = refused

    @property
    def server_info(self) -> dict[str, Any]:
        return self._server_info

    async def listen(self, subject: str, sink: Sink) -> int:
        """Subscribe. The driver does not know of it: it would make a queue and a task."""
        self._sid += 1
        self.sinks[self._sid] = sink
        await self.send(b"SUB %s  %d\r\n" % (written_subject(subject), self._sid))
        return self._sid

    async def send(self, data: bytes) -> None:
        await self._send_command(data)
        await self._flush_pending()

    async def note(self, error: Exception) -> None:
        """Take an error that the server told about no request in particular."""
        self._on_refused(str(error).lower())

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:  # noqa: PLR0917 - the driver's signature
        sink = self.sinks.get(sid)
        if sink is not None:
            sink(NatsArrival(bytes(subject), bytes(reply), headers or b"", data))


def _publish(request: NatsRequest, reply: bytes, max_payload: int) -> bytes:
    """Return the command. Raises ValueError for one that would make the server close the connection, or do something else."""
    subject, headers, body = written_subject(request.subject), request.headers, request.body
    if len(headers) + len(body) > max_payload:
        raise ValueError(f"a message of {len(headers) + len(body):,} bytes: the server takes {max_payload:,} (max_payload)")
    if headers:
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, len(headers), len(headers) + len(body), headers, body)
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body)


def _outcome(answer: NatsArrival | str) -> CopyOutcome:
    if isinstance(answer, _Unsendable):
        return CopyOutcome.REFUSED
    if isinstance(answer, str):
        return CopyOutcome.UNKNOWN
    if answer.has_no_responders:
        return CopyOutcome.MISSING
    try:
        found = _decode_answer(answer.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return CopyOutcome.UNKNOWN
    if found.error is None:
        return CopyOutcome.TAKEN if found.seq else CopyOutcome.UNKNOWN
    return CopyOutcome.REFUSED if found.error.err_code in _TOO_LARGE else CopyOutcome.UNKNOWN


_decode_answer = msgspec.json.Decoder(_PublishAnswer).decode
_decode_response = msgspec.json.Decoder(dict[str, Any]).decode
_is_number = re.compile(rb"[0-9a-f]{1,8}").fullmatch


def _context(address: NatsAddress) -> ssl.SSLContext:
    return tls_context(
        address.place,
        cafile=address.cafile,
        certfile=address.certfile,
        keyfile=address.keyfile,
        verifies=address.verifies,
    )


def _setup_problem(error: Exception) -> str:
    """Return what a person must change; empty for an error that may pass."""
    text = str(error).lower()
    if isinstance(error, AuthorizationError) or "authorization" in text or "authentication" in text:
        return "the server rejected this user, password or token"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not valid: {error.verify_message}. Use cafile="
    if "no such file" in text or "secure connection" in text or "tls required" in text:
        return str(error)
    return ""
