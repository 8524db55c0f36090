"""RabbitMQ: where it is, one connection that comes back, and what its errors mean.

The driver is aiormq (decision 0007). What is not on the list of definite errors below is OutcomeUnknown.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel as AmqpChannel
from aiormq.connection import exception_by_code
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from pamqp import commands as spec

from onceonly.adapters.rabbitmq.address import RabbitMQAddress
from onceonly.adapters.rabbitmq.frame_reader import ReadingStreams, Taker
from onceonly.adapters.rabbitmq.frames import delivered
from onceonly.adapters.rabbitmq.publisher import Confirmation, PublishOutcome, PublishRequest, match_returns, publish_all
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, QueueMissing, SetupError
from onceonly.ports.environment import RandomSource
from onceonly.queues.destinations import SilentDestinations
from onceonly.queues.reconnection import Reconnection

FRAME = 131_072  # bytes of a frame that servers take, unless they say otherwise
CONNECT_SECONDS = 10.0  # for an attempt, or less by `timeout=`
ANSWER_SECONDS = 30.0  # for an answer of the server, where no other limit is given
MANY_ANSWERS_SECONDS = 10 * ANSWER_SECONDS  # for many of them, such as those to the declarations of all levels of delay
PROBE_SECONDS = 5.0  # or less by `timeout=`: for an answer that shows that a connection works
CLOSE_SECONDS = 2.0  # to close something politely
MOST_CHANNELS = 2047  # RabbitMQ's default limit for a connection
LOOKS = 6  # in a heartbeat's time: this many in a row that find no byte of the server's mean that it is gone
_PASSING = re.compile(r"connection limit|down or inaccessible| is down")  # said with the codes of lasting faults
_NO_QUEUE = re.compile(r"no queue '")
_REFUSED = "the server rejected this user or password"
_OTHERWISE = "It exists with other settings: delete it, or use other names with the option prefix="
_REMEDIES: dict[type[AMQPError], str] = {
    AuthenticationError: _REFUSED,
    ProbableAuthenticationError: _REFUSED,
    ConnectionNotAllowed: "Use an existing virtual host that this user may access",
    ChannelAccessRefused: "Grant this user the permission",
    ChannelPreconditionFailed: _OTHERWISE,
    ChannelLockedResource: _OTHERWISE,
    ChannelNotFoundEntity: "Run `onceonly topology create module:endpoint`, or start its endpoint",
}
_BROKEN = (AMQPError, OSError, RuntimeError, EOFError, TimeoutError, asyncio.InvalidStateError)
_Result = TypeVar("_Result")
Channel: TypeAlias = AmqpChannel
Properties: TypeAlias = spec.Basic.Properties
Brought: TypeAlias = DeliveredMessage

if logging.getLogger("aiormq").level == logging.NOTSET:
    # An outage is this library's to tell, once; the driver tells it, with tracebacks, at every attempt.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)


class RabbitMQLink:
    """One connection to a server, shared by what a process has there; see `Reconnection`."""

    def __init__(self, address: RabbitMQAddress, random: RandomSource) -> None:
        self.address = address
        self._reconnection = Reconnection(self._connect, _disconnect, random)
        self._number = 0  # of the channel that was opened last
        self._watched: _Connection | None = None
        self._watching: asyncio.TimerHandle | None = None
        self.silent = SilentDestinations()

    @property
    def frame(self) -> int:
        """How many bytes a frame may have, as far as is known."""
        known = self._reconnection.current
        tune = known.connection_tune if known is not None else None
        return (tune.frame_max if tune is not None else 0) or FRAME

    async def channel(self, *, confirms: bool) -> Channel:
        """Open a channel, connecting first if need be.

        Raises CommitFailed when the server is away, SetupError when it refuses.
        """
        connection = await self._connected()
        known = connection.answered
        try:
            async with translated("open a channel", definite=True, within=self.address.timeout):
                opening = connection.channel(
                    self._free_number(connection), publisher_confirms=confirms, timeout=self.address.timeout
                )
                channel = await shielded(opening)
        except CommitFailed:
            if connection is self._reconnection.current and connection.answered == known and _is_ready(connection):
                await shielded(self._reconnection.drop())  # nothing is answered on it, though heartbeats may arrive
            raise
        assert isinstance(channel, Channel)  # noqa: S101 - the driver has no other
        if confirms:
            match_returns(channel)
        return channel

    def _free_number(self, connection: "_Connection") -> int:
        """Return a number for a channel, by turns. The driver's own choice is the number of the channel that was closed last.

        The driver may then send the request to open before the confirmation of that close, and the server ends the connection.
        """
        most = connection.connection_tune.channel_max or MOST_CHANNELS
        for _ in range(most):
            self._number = self._number % most + 1
            if self._number not in connection.channels:
                break
        return self._number

    @asynccontextmanager
    async def temporary_channel(self, *, confirms: bool = False) -> AsyncIterator[Channel]:
        """Return a channel for a few calls any of which may close it."""
        channel = await self.channel(confirms=confirms)
        try:
            yield channel
        finally:
            with suppress(OutcomeUnknown):
                async with translated("close a channel", within=CLOSE_SECONDS):
                    await shielded(channel.close())

    async def ready(self, seconds: float) -> bool:
        """Return whether the server takes messages, waiting for it this long: it blocks connections when it runs full."""
        known = self._reconnection.current
        if known is not None and known.is_opened and not self._reconnection.is_closed and _is_ready(known):
            return True
        connection = await self._connected()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await connection.ready()
                return True
        return False

    async def close(self) -> None:
        await self._reconnection.close()

    async def abandon(self, channel: Channel) -> None:
        """Make sure that the server gives to others what it holds for a channel that has failed.

        The driver may call a channel closed that the server still knows; only the end of its connection is certain.
        """
        if self._reconnection.current is not None and channel.connection is self._reconnection.current:
            await self._reconnection.drop()

    async def works(self, channel: Channel) -> bool:
        """Return whether the server answers on the channel's connection. Ends one on which it does not.

        Heartbeats may still arrive on that. While the server answers other requests, silence is about one queue.
        """
        try:
            async with asyncio.timeout(min(self.address.timeout, PROBE_SECONDS)), self.temporary_channel():
                return channel.connection is self._reconnection.current
        except (TimeoutError, OnceOnlyError):
            await shielded(self.abandon(channel))
            return False

    async def _connected(self) -> "_Connection":
        connection = await self._reconnection.get()
        if connection is not self._watched:
            self._watched = connection
            self._watch(connection, connection.received, 0)
        return connection

    def _watch(self, connection: "_Connection", received: int, quiet: int) -> None:
        """Hang up on a server that has sent nothing for a heartbeat's time. It sends two in that; the driver waits for six.

        Looks are counted, not seconds: a loop that was blocked has not read what came.
        """
        heartbeat = connection.connection_tune.heartbeat or 0
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if not heartbeat or connection is not self._reconnection.current:
            return
        now = connection.received
        quiet = quiet + 1 if now == received else 0
        if quiet > LOOKS:
            connection.hang_up()
        elif connection.is_opened:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(heartbeat / LOOKS, self._watch, connection, now, quiet)

    async def _connect(self) -> "_Connection":
        place, connection = self.address.place, _Connection(self.address.url)
        limit = min(self.address.timeout, CONNECT_SECONDS)
        try:
            async with asyncio.timeout(limit), translated(f"connect to {place}", definite=True):
                await connection.connect()
        except TimeoutError as error:
            raise CommitFailed(f"cannot connect to {place}: no answer for {limit:g} s") from error
        return connection


class _Connection(aiormq.Connection):
    """The driver's connection over streams of ours; where a server closes it instead of opening it, this keeps its reason."""

    def __init__(self, url: str) -> None:
        self.streams = ReadingStreams()
        self.answered = 0
        """How many messages that were published here the server has answered for."""
        super().__init__(url, transport_factory=self.streams)

    @property
    def is_open(self) -> bool:
        return self.is_opened

    @property
    def received(self) -> int:
        return 0 if self.streams.reader is None else self.streams.reader.received

    def hang_up(self) -> None:
        """Close the socket at once: what waits for the server fails."""
        if self.streams.writer is not None:
            self.streams.writer.transport.abort()

    @staticmethod
    async def _rpc(request: Any, writer: Any, frame_receiver: Any, wait_response: bool = True) -> Any:  # noqa: FBT001, FBT002 - the driver's signature
        heard = _Heard(frame_receiver)
        try:
            return await aiormq.Connection._rpc(request, writer, heard, wait_response)  # type: ignore[arg-type] # noqa: SLF001 - has one method of it
        except InvalidFrameError as error:
            if isinstance(heard.last, spec.Connection.Close):
                raise exception_by_code(heard.last) from error
            raise


async def _disconnect(connection: _Connection) -> None:
    closing = asyncio.ensure_future(connection.close())
    closing.add_done_callback(_retrieve)
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    connection.hang_up()  # harmless when it is closed
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)


class _Heard:
    """Keeps the last frame that came."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver
        self.last: object = None

    async def get_frame(self) -> Any:
        weight, channel, self.last = await self._receiver.get_frame()
        return weight, channel, self.last


@asynccontextmanager
async def translated(what: str, *, definite: bool = False, within: float = ANSWER_SECONDS) -> AsyncIterator[None]:
    """Limit the time, and translate the driver's errors.

    They become SetupError for what a person must change; else OutcomeUnknown, or CommitFailed where `definite`, as when the
    time is over. `definite` means that nothing can have happened that matters. The driver reports a lost connection also by
    cancelling the waiting task, by an `Exception` of no kind, and by what it trips over, such as StopAsyncIteration.
    """
    try:
        async with asyncio.timeout(within):
            yield
    except OnceOnlyError:
        raise
    except tuple(_REMEDIES) as error:
        if _PASSING.search(_text_of(error)):
            raise (CommitFailed if definite else OutcomeUnknown)(f"cannot {what}: {_text_of(error)}") from error
        remedy = _REMEDIES[type(error)]
        reason = remedy if remedy is _REFUSED else f"{_text_of(error).rstrip('.')}. {remedy}"
        kind = QueueMissing if _NO_QUEUE.search(_text_of(error)) else SetupError
        raise kind(f"cannot {what}: {reason}") from error
    except TimeoutError as error:
        waited = str(error) or f"no answer within {within:g} s"
        raise (CommitFailed if definite else OutcomeUnknown)(f"cannot {what}: {waited}") from error
    except _BROKEN as error:
        raise (CommitFailed if definite else OutcomeUnknown)(f"cannot {what}: {_text_of(error)}") from error
    except (Exception, asyncio.CancelledError) as error:
        if not _means_lost(error):
            raise
        name = "" if isinstance(error, asyncio.CancelledError) or type(error) is Exception else f" ({type(error).__name__})"
        raise (CommitFailed if definite else OutcomeUnknown)(f"cannot {what}: the connection was lost{name}") from error


async def shielded(call: Awaitable[_Result]) -> _Result:
    """Finish a call even when its caller is cancelled: a call cut off half-way would close its channel."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(_retrieve)
    return await asyncio.shield(task)


async def consume(channel: Channel, queue: str, taker: Taker) -> str:
    """Start a consumer of a queue, and return its tag. A channel has one taker, for all its consumers."""

    async def take(message: Brought) -> None:  # what could not be kept back from the driver
        taker(delivered(message))

    connection = channel.connection
    if isinstance(connection, _Connection) and connection.streams.reader is not None:
        connection.streams.reader.bring(channel.number, taker)
    started = await channel.basic_consume(queue, take)
    return started.consumer_tag or ""


async def publish(
    channel: Channel,
    requests: Sequence[PublishRequest],
    timeout: float,  # noqa: ASYNC109 - it ends in outcomes, not in an error
    silent: SilentDestinations | None = None,
) -> list[PublishOutcome]:
    """Publish all at once and wait for every confirm. What a nack refuses is UNKNOWN, what is not answered in time SILENT.

    For `silent` destinations it waits only as long as the others take.
    """
    answers: list[Confirmation] = []
    silent = SilentDestinations() if silent is None else silent
    try:
        await publish_all(channel, _stream(channel), requests, answers, patience=timeout, silent=silent)
    except _BROKEN:
        pass  # what was not answered is SILENT
    except (Exception, asyncio.CancelledError) as error:
        if not _means_lost(error):
            raise
    _connection(channel).answered += sum(answer.outcome is not PublishOutcome.SILENT for answer in answers)
    return [answer.outcome for answer in answers] or [PublishOutcome.SILENT] * len(requests)


def answered(channel: Channel) -> int:
    """Return for how many messages the server has answered that were published on the channel's connection."""
    return _connection(channel).answered


async def attempt(link: RabbitMQLink, what: str, call: Callable[[Channel], Awaitable[_Result]]) -> _Result | None:
    """Make one call on a channel of its own; gives None when what it names does not exist."""
    try:
        async with link.temporary_channel() as channel, translated(what, definite=True, within=link.address.timeout):
            return await shielded(call(channel))
    except SetupError as error:
        if isinstance(error.__cause__, ChannelNotFoundEntity):
            return None
        raise


def is_open(channel: Channel | None) -> bool:
    """Return whether a channel and its connection can still be used."""
    return channel is not None and not channel.is_closed and channel.connection.is_opened


def is_blocked(channel: Channel) -> bool:
    """Return whether the server, running full, has said that it no longer reads from the channel's connection."""
    return not _is_ready(_connection(channel))


async def watch(link: RabbitMQLink, channel: Channel, ask: Callable[[Channel], Awaitable[object]]) -> None:
    """Abandon a channel when the server no longer answers on its connection. Ends when the channel is closed.

    Calls `ask` after every `timeout=` seconds without a confirm, and allows the same time for its answer. A connection may no
    longer carry what is sent on it, although the server's heartbeats arrive: when a part of a frame is lost on its way, the
    reader takes all that follows for the rest of that frame. Publishes are confirmed and calls are answered within a limit;
    acknowledgements and deliveries have no answer.
    """
    timeout, closing = link.address.timeout, channel.closing
    while is_open(channel):
        known = answered(channel)
        await asyncio.wait([closing], timeout=timeout)
        if answered(channel) == known and not await _is_answered(channel, ask, timeout) and is_open(channel):
            await shielded(link.abandon(channel))


async def _is_answered(channel: Channel, ask: Callable[[Channel], Awaitable[object]], seconds: float) -> bool:
    """Return whether a call is answered in time. Not counted is time with confirms, or while the server blocks the connection.

    A server that blocks a connection does not read from it. Looks are counted, not seconds: a loop that was blocked has not
    read what came. The call is not cancelled, which would close its channel: it ends with the connection.
    """
    asking, quiet = asyncio.ensure_future(ask(channel)), 0
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: the channel was closed
    while quiet < LOOKS and is_open(channel):
        known = answered(channel)
        await asyncio.wait([asking], timeout=seconds / LOOKS)
        if asking.done():
            return not asking.cancelled() and asking.exception() is None
        quiet = 0 if is_blocked(channel) or answered(channel) != known else quiet + 1
    return False


def _connection(channel: Channel) -> _Connection:
    connection = channel.connection
    assert isinstance(connection, _Connection)  # noqa: S101 - `Link` makes no other
    return connection


def _stream(channel: Channel) -> asyncio.StreamWriter:
    writer = _connection(channel).streams.writer
    assert writer is not None  # noqa: S101 - a channel is opened on an open connection
    return writer


def _is_ready(connection: aiormq.Connection) -> bool:
    """Return whether the server takes messages just now: what need not wait ends with its first step."""
    asked = connection.ready()
    try:
        asked.send(None)
    except StopIteration:
        return True
    asked.close()
    return False


def _means_lost(error: BaseException) -> bool:
    """Return whether the driver reports a lost connection: by any error, or by a cancellation that was not requested."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception)


def _retrieve(task: "asyncio.Future[_Result]") -> None:
    if not task.cancelled():
        task.exception()


def _text_of(error: BaseException) -> str:
    """Return what the driver said; its texts name hosts and queues, never credentials."""
    text = " ".join(str(part) for part in error.args if isinstance(part, str | int) and part != "")
    return text or type(error).__name__
