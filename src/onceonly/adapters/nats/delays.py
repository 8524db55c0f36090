"""Delayed messages: a stream from which the receivers of an endpoint move what is due to its queue.

A delayed message has the time at which it is due in its subject, in tenths of a second, rounded up. So nothing is early, and
what is due is found by listing subjects: no message is held, counted or read before. A process that receives lists those of the
present minute once a second, and all of them at its start and once a minute. A process that delays a message for its own
endpoint moves it without that wait.

Crash while moving: 1 copy stored in the queue, 2 original not deleted, 3 moved again, by any process, 4 the same `Nats-Msg-Id`:
the server drops the second copy. After its window for duplicates, two minutes, 5 one claim: handled once. The id belongs to one
stored message, so no other send is ever dropped.

Any user with the right to publish chooses the subject, headers and body. A message whose subject has no instant is moved to
the queue with the reason in its first header, and becomes a dead letter there. One that the queue never takes stays, and holds
up nothing. So does one whose subject has the character DEL (0x7F), which newer servers list nowhere: 2.15 does not, 2.9 does.
"""

import asyncio
import re
from typing import TypeAlias

from msgspec import Struct

from onceonly.adapters.nats.link import NatsLink, NatsRequest, read_answer
from onceonly.adapters.nats.names import BUCKET_MS, MINUTE, NatsNames, rounded_up
from onceonly.adapters.nats.topology import subjects
from onceonly.adapters.nats.wire import MOVED, copied_headers
from onceonly.formats.undecodable import report_unreadable, shown
from onceonly.model.errors import SetupError
from onceonly.ports.environment import Clock
from onceonly.queues.deliveries import raise_first
from onceonly.queues.destinations import CopyOutcome

LOOK_MS = 1_000
"""Milliseconds between two looks at what others have delayed."""
SEARCH_MS = 60_000
"""Milliseconds between two looks at all that is delayed."""
CHUNK = 100
CHUNK_BYTES = 4 * 1024 * 1024
AT_ONCE = 8
"""Subjects that are moved at the same time. `CHUNK` messages of each are in memory, and `CHUNK_BYTES` of bodies at most."""
MOST_STRAYS = 1_000
"""Messages that one search looks at for each subject without an instant."""
_plain_token = re.compile(r"[A-Za-z0-9_=-]+").fullmatch


class _StoredMessage(Struct):
    """A message in the stream, as the API describes it."""

    subject: str
    seq: int
    time: str = ""
    hdrs: bytes = b""
    data: bytes = b""


class _MessageAnswer(Struct):
    message: _StoredMessage


_Chunk: TypeAlias = list[tuple[int, NatsRequest]]
"""Messages by their places in the stream, with their copies."""


class NatsDelayedMessages:
    """The delayed messages of one endpoint."""

    def __init__(self, link: NatsLink, names: NatsNames, endpoint: str, clock: Clock) -> None:
        self._link = link
        self._names = names
        self._endpoint = endpoint
        self._clock = clock
        self._look_at = self._search_at = 0
        self._noted: set[int] = set()
        self._leaves_strays = False

    def note(self, due: int) -> None:
        """Remember that a message was delayed from here."""
        self._noted.add(due)

    @property
    def next_look(self) -> int:
        """When to move again, in milliseconds since 1970."""
        return min([self._look_at, *map(rounded_up, self._noted)])

    async def count(self, endpoint: str) -> tuple[int, int]:
        """Count the messages for an endpoint that are due and not moved yet, and those that are not due."""
        now = self._clock.now()
        found = await subjects(self._link, self._names.delayed, self._names.all_delayed_for(endpoint))
        due = sum(number for subject, number in found.items() if (self._names.due_of(endpoint, subject) or 0) <= now)
        return due, sum(found.values()) - due

    async def move(self) -> None:
        """Move what is due to the queue. Raises CommitFailed, SetupError."""
        now = self._clock.now()
        searches = now >= self._search_at
        found = await self._list(now, everything=searches)
        dues = {subject: at for subject in found if (at := self._names.due_of(self._endpoint, subject)) is not None}
        due = sorted(subject for subject, at in dues.items() if at <= now)
        outcomes: list[BaseException | None] = []
        for start in range(0, len(due), AT_ONCE):
            moving = (self._move(subject) for subject in due[start : start + AT_ONCE])
            outcomes += await asyncio.gather(*moving, return_exceptions=True)
        raise_first(outcomes)
        self._noted = {each for each in self._noted if each > now}
        self._look_at = min([now + LOOK_MS, *(at for at in dues.values() if at > now)])
        if searches:
            self._search_at = now + SEARCH_MS
            if not self._leaves_strays:
                await self._move_strays([subject for subject in found if subject not in dues])

    async def _list(self, now: int, *, everything: bool) -> list[str]:
        stream = self._names.delayed
        if everything:
            return list(await subjects(self._link, stream, self._names.all_delayed_for(self._endpoint)))
        minute = now // BUCKET_MS // MINUTE
        minutes = [self._names.delayed_for(self._endpoint, str(each)) for each in (minute - 1, minute)]
        found = await asyncio.gather(*(subjects(self._link, stream, each) for each in minutes))
        return [subject for each in found for subject in each]

    async def _move(self, subject: str) -> None:
        first = 0
        while chunk := await self._read(subject, first):
            outcomes = await self._link.publish([request for _, request in chunk])
            stored = 0
            while stored < len(outcomes) and outcomes[stored] is CopyOutcome.TAKEN:
                stored += 1
            if stored:
                # Crash here: the copies are stored, and the originals are not deleted; see above.
                first = chunk[stored - 1][0] + 1
                await self._link.api(f"STREAM.PURGE.{self._names.delayed}", {"filter": subject, "seq": first})
            if stored < len(outcomes) and not await self._pass_refused(subject, chunk[stored:], outcomes[stored:]):
                return  # its queue is missing, or full: the next look finds it again
            first = chunk[-1][0] + 1

    async def _pass_refused(self, subject: str, chunk: _Chunk, outcomes: list[CopyOutcome]) -> bool:
        """Leave what the queue never takes, and delete the others that it has taken. Returns whether to go on."""
        for (place, _), outcome in zip(chunk, outcomes, strict=True):
            if outcome is CopyOutcome.TAKEN:
                await self._delete(place)
            elif outcome is CopyOutcome.REFUSED:
                reason = f"its queue never takes message {place} of stream {self._names.delayed!r}, so it stays there"
                report_unreadable(self._endpoint, "delayed message", f"{subject} {place}", reason)
            else:
                return False
        return True

    async def _move_strays(self, strays: list[str]) -> None:
        """Move messages without an instant, marked as unreadable. None of their subjects is used for more than to find them."""
        for subject in strays:
            report_unreadable(self._endpoint, "delayed message", subject, "its subject has no time: moved to the queue")
        for subject in strays:
            reason = f"its subject has no time: {shown(subject)}. Correct the sender"
            pattern = ".".join(token if _plain_token(token) else "*" for token in subject.split("."))
            if ">" in subject:
                pattern = self._names.all_delayed_for(self._endpoint)  # no other pattern matches a literal one
            first = 0
            for _ in range(MOST_STRAYS):
                message = await self._get(pattern, first)
                if message is None:
                    break
                first = message.seq + 1
                if self._names.due_of(self._endpoint, message.subject) is None:
                    (outcome,) = await self._link.publish([self._copy(message, reason)])
                    if outcome is not CopyOutcome.TAKEN:
                        break
                    try:
                        await self._delete(message.seq)
                    except SetupError as error:  # without the permission the next search would copy it again
                        self._leaves_strays = True
                        report_unreadable(self._endpoint, "delayed message", f"{subject} {message.seq}", str(error))
                        return

    async def _delete(self, place: int) -> None:
        await self._link.api(f"STREAM.MSG.DELETE.{self._names.delayed}", {"seq": place})

    async def _read(self, subject: str, first: int) -> _Chunk:
        """Read the next messages of a subject, and make their copies."""
        found: _Chunk = []
        size = 0
        while len(found) < CHUNK and size < CHUNK_BYTES:
            message = await self._get(subject, first)
            if message is None:
                break
            found.append((message.seq, self._copy(message)))
            size += len(found[-1][1].body)
            first = message.seq + 1
        return found

    async def _get(self, subject: str, first: int) -> _StoredMessage | None:
        answer = await self._link.api(f"STREAM.MSG.GET.{self._names.delayed}", {"next_by_subj": subject, "seq": first})
        return None if answer is None else read_answer(answer, _MessageAnswer).message

    def _copy(self, message: _StoredMessage, reason: str = "") -> NatsRequest:
        name, most = f"{MOVED}{message.seq}-{message.time}", self._link.max_payload - len(message.data)
        headers = copied_headers(message.hdrs, msg_id=name, unreadable=reason, most=most)
        return NatsRequest(self._names.queue_subject(self._endpoint), message.data, headers)
