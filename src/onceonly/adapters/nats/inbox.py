"""What one process receives from one queue: pull requests, and the deliveries that it holds.

A receiver first asks for what waits, without waiting. If there is nothing, it asks for one message and waits; when that comes,
it asks for the others. So nothing is delivered to a process that is busy while another one is idle.

A pull that no receiver waits for any more is ended: its inbox is unsubscribed, so the server delivers no more to it. Its
deliveries are released as copies: a message that the server itself delivers again would count as a suspect.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from onceonly.adapters.nats.link import API, NatsArrival, NatsConnection, NatsLink, NatsRequest, written_subject
from onceonly.formats.undecodable import shown
from onceonly.model.errors import CommitFailed, OutcomeUnknown, RetryableError
from onceonly.ports.environment import Clock
from onceonly.queues.deliveries import BackgroundCalls, HeldLeases
from onceonly.queues.messages import queue_missing

LONGEST_PULL_SECONDS = 30.0
"""After which a request that waits is renewed."""
ANSWER_SECONDS = 5.0
"""For the server to end a request in time. It does not when the consumer was deleted."""
PARKED_SECONDS = 0.05
"""For the server to answer a request that does not wait. NATS 2.9 parks one if others take the messages that it was for."""
_EMPTY = ("404", "408")  # there are no messages, or the time is over
_NANOSECONDS = 1_000_000_000
_PLAIN_TOKENS, _COUNT, _COUNT_WITH_DOMAIN = 9, 4, 6
_token = rb"[!-\-/-~]+\."
_is_receipt = re.compile(
    rb"\$JS\.ACK\.(?:%b){2}(?:[0-9]{1,20}\.){4}[0-9]{1,20}|\$JS\.ACK\.(?:%b){4}(?:[0-9]{1,20}\.){4}[0-9]{1,20}(?:\.[!-~]+)?"
    % (_token, _token)
).fullmatch
"""Recognizes the subject to which a delivery is acknowledged: ADR-15 of NATS. It becomes a line of a command."""


class NatsReceipt(Struct, frozen=True):
    """The subject to which a delivery is acknowledged. It has the number of the delivery, so no two are equal."""

    reply: str


class NatsInbox:
    """Deliveries of one queue, for all receivers of one process. `give_back` sends copies and acknowledges the originals."""

    def __init__(
        self,
        link: NatsLink,
        stream: str,
        consumer: str,
        give_back: Callable[[list[NatsArrival]], Awaitable[None]],
        *,
        clock: Clock,
        exists: Callable[[], Awaitable[bool]],
    ) -> None:
        self._link = link
        self._next = f"{API}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._stream = stream
        self._give_back = give_back
        self._exists = exists
        self._known = 0
        self._free: list[Pull] = []
        self._background = BackgroundCalls()
        self.leases = HeldLeases(clock, link.address.lease)

    async def take(self, limit: int, wait: float) -> list[NatsArrival]:
        """Take deliveries that wait, at most `limit`, none after `wait` seconds. Raises RetryableError, QueueMissing."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        connection = await self._link.connection()
        if self._known != connection.serial:
            await self._require_consumer(connection)
        while not (got := await self._pull(connection, limit, 0.0)):
            left = end - clock()
            if left <= 0:
                return []
            got = await self._pull(connection, 1, min(left, LONGEST_PULL_SECONDS))
            if got and limit > 1:
                try:
                    got += await self._pull(connection, limit - 1, 0.0)
                except RetryableError:
                    pass  # what has come is returned; the next call finds out what is wrong
                except asyncio.CancelledError:
                    self._background.start(self._give_back(got))
                    raise
            if got:
                break
        self.leases.hold([message.reply.decode() for message in got])
        return got

    def holds(self, receipt: object) -> str:
        """Return the subject to which a delivery is acknowledged; empty if its lease has ended, as far as is known here."""
        return receipt.reply if isinstance(receipt, NatsReceipt) and self.leases.holds(receipt.reply) else ""

    async def close(self) -> None:
        await self._background.close()

    async def _require_consumer(self, connection: NatsConnection) -> None:
        if not await self._exists():
            raise queue_missing(f"stream {self._stream!r} with its consumer")
        self._known = connection.serial

    async def _pull(self, connection: NatsConnection, limit: int, wait: float) -> list[NatsArrival]:
        """Make one request. With `wait` it lasts that many seconds, or until `limit` deliveries have come."""
        while self._free and self._free[-1].connection is not connection:
            self._free.pop()
        pull = self._free.pop() if self._free else await Pull.open(connection)
        try:
            await pull.request(self._next, limit, wait)
            await pull.wait(wait + min(self._link.address.timeout, ANSWER_SECONDS) if wait else PARKED_SECONDS)
            if not pull.is_over:
                self._known = 0  # the next call looks whether there is a consumer
                await pull.end(patience=self._link.address.timeout)
        except asyncio.CancelledError:
            self._background.start(self._end(pull))
            raise
        if not pull.messages:
            await self._raise_problem(pull, wait)
        if pull.is_over and not pull.problem:
            self._free.append(pull)
        return pull.messages

    async def _raise_problem(self, pull: "Pull", wait: float) -> None:
        """Raise what is wrong with a request that brought nothing, if anything is."""
        if pull.connection.lost.done():
            raise CommitFailed(f"the connection to {self._link.address.place} was lost")
        if pull.problem:
            await self._require_consumer(pull.connection)
            raise CommitFailed(f"cannot receive from stream {self._stream!r}: {pull.problem}")
        if not pull.is_over and (wait or not pull.is_ended):
            await self._require_consumer(pull.connection)
            await self._link.drop(pull.connection)
            raise CommitFailed(f"the server did not answer a request for messages of stream {self._stream!r}")

    async def _end(self, pull: "Pull") -> None:
        """End a request that no receiver waits for, and release its deliveries."""
        if not pull.is_over:
            await pull.end(patience=self._link.address.timeout)
        if pull.messages:
            await self._give_back(pull.messages)


class Pull:
    """An inbox for the answers to one request after another."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self.messages: list[NatsArrival] = []
        self.is_over = False
        self.is_ended = False
        self._subject = ""
        self._number = 0
        self.problem = ""
        self._limit = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, connection: NatsConnection) -> "Pull":
        pull = cls(connection)
        pull._number, pull._subject = await connection.subscribe(pull.take)
        return pull

    async def request(self, subject: str, limit: int, wait: float) -> None:
        """Ask for deliveries. With `wait` for that many seconds, otherwise only for those that wait."""
        self.messages, self.is_over, self.problem, self._limit = [], False, "", limit
        self._done = asyncio.get_running_loop().create_future()
        options: dict[str, object] = {"batch": limit, "no_wait": True}
        if wait > 0:
            options = {"batch": limit, "expires": max(1_000_000, int(wait * _NANOSECONDS))}
        body = msgspec.json.encode(options)
        subjects = written_subject(subject), written_subject(self._subject)
        await self.connection.write(b"PUB %s %s %d\r\n%s\r\n" % (*subjects, len(body), body))

    async def wait(self, seconds: float) -> None:
        """Wait until the request is over, or the connection is lost, or the time."""
        await asyncio.wait([self._done, self.connection.lost], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, *, patience: float) -> None:
        """Unsubscribe. Afterwards nothing more is delivered for the request, if the server has confirmed it: `is_ended`."""
        self.is_ended = await self.connection.unsubscribe(self._number, patience=patience)

    def take(self, arrival: NatsArrival) -> None:
        """Take a delivery, or the word that there are no more."""
        if _is_receipt(arrival.reply):
            self.messages.append(arrival)
            self.is_over = self.is_over or len(self.messages) >= self._limit
        else:
            status = arrival.headers.partition(b"\r\n")[0].decode(errors="replace").removeprefix("NATS/1.0 ")
            self.is_over, self.problem = True, "" if status.startswith(_EMPTY) else shown(status) or "no status"
        if self.is_over and not self._done.done():
            self._done.set_result(None)


def deliveries_of(arrival: NatsArrival) -> int:
    """Return how often the server has delivered a message; see ADR-15 of NATS for the subject."""
    tokens = arrival.reply.split(b".")
    return int(tokens[_COUNT if len(tokens) == _PLAIN_TOKENS else _COUNT_WITH_DOMAIN])


async def acknowledge(link: NatsLink, replies: Sequence[str], word: bytes = b"+ACK") -> None:
    """Acknowledge deliveries, and wait until the server has taken all. Raises OutcomeUnknown, CommitFailed.

    The last one asks for an answer, and the server takes them in order.
    """
    if not replies:
        return
    connection = await link.connection()
    await connection.write(acknowledgements(replies[:-1], word))
    answers, silent = await connection.ask([NatsRequest(replies[-1], word)], link.address.timeout)
    if isinstance(answers[0], str):
        if silent:
            await link.works(connection)
        raise OutcomeUnknown(f"cannot acknowledge messages: {answers[0]}")


def acknowledgements(replies: Iterable[str], word: bytes) -> bytes:
    """Return commands that acknowledge deliveries and ask for no answer."""
    return b"".join([b"PUB %s %d\r\n%s\r\n" % (written_subject(reply), len(word), word) for reply in replies])
