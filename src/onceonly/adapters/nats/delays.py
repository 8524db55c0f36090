"""Delayed messages: a stream from which the receivers of an endpoint move what is due to its queue.

A delayed message has the time at which it is due in its subject, in tenths of a second, rounded up. So nothing is early, and
what is due is found by listing subjects: no message is held, counted or read before. A process that receives lists those of the
present minute once a second, and all of them at its start and once a minute. A process that delays a message for its own
endpoint moves it without that wait.

Crash while moving: 1 copy stored in the queue, 2 original not deleted, 3 moved again, by any process, 4 the same `Nats-Msg-Id`:
the server drops the second copy. After its window for duplicates, two minutes, 5 one claim: handled once. The id belongs to one
stored message, so no other send is ever dropped.
"""

import asyncio
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from onceonly.adapters.nats.link import STORED, Link, Request
from onceonly.adapters.nats.names import BUCKET_MS, MINUTE, TopologyNames, due_of
from onceonly.adapters.nats.topology import subjects
from onceonly.adapters.nats.wire import MOVED, read_headers, write_headers
from onceonly.ports.environment import Clock

LOOK_MS = 1_000
"""Milliseconds between two looks at what others have delayed."""
SEARCH_MS = 60_000
"""Milliseconds between two looks at all that is delayed."""
CHUNK = 100
CHUNK_BYTES = 4 * 1024 * 1024
AT_ONCE = 8
"""Subjects that are moved at the same time. `CHUNK` messages of each are in memory, and `CHUNK_BYTES` of bodies at most."""


class DelayedMessages:
    """The delayed messages of one endpoint."""

    def __init__(self, link: Link, names: TopologyNames, endpoint: str, clock: Clock) -> None:
        self._link = link
        self._names = names
        self._endpoint = endpoint
        self._clock = clock
        self._look_at = self._search_at = 0
        self._noted: set[int] = set()

    def note(self, due: int) -> None:
        """Remember that a message was delayed from here."""
        self._noted.add(due)

    @property
    def next_look(self) -> int:
        """When to move again, in milliseconds since 1970."""
        return min([self._look_at, *(due_of(self._names.delayed_until(self._endpoint, due)) for due in self._noted)])

    async def count(self, endpoint: str) -> tuple[int, int]:
        """Count the messages for an endpoint that are due and not moved yet, and those that are not due."""
        now = self._clock.now()
        found = await subjects(self._link, self._names.delayed, self._names.delayed_for(endpoint))
        due = sum(number for subject, number in found.items() if due_of(subject) <= now)
        return due, sum(found.values()) - due

    async def move(self) -> None:
        """Move what is due to the queue. Raises CommitFailed, SetupError."""
        now = self._clock.now()
        searches = now >= self._search_at
        found = await self._list(now, everything=searches)
        due = sorted(subject for subject in found if due_of(subject) <= now)
        for first in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._move(subject) for subject in due[first : first + AT_ONCE]))
        later = [due_of(subject) for subject in found if due_of(subject) > now]
        self._noted = {each for each in self._noted if each > now}
        self._look_at = min([now + LOOK_MS, *later])
        if searches:
            self._search_at = now + SEARCH_MS

    async def _list(self, now: int, *, everything: bool) -> Iterable[str]:
        stream = self._names.delayed
        if everything:
            return await subjects(self._link, stream, self._names.delayed_for(self._endpoint))
        minute = now // BUCKET_MS // MINUTE
        minutes = [self._names.delayed_for(self._endpoint, str(each)) for each in (minute - 1, minute)]
        found = await asyncio.gather(*(subjects(self._link, stream, each) for each in minutes))
        return [subject for each in found for subject in each]

    async def _move(self, subject: str) -> None:
        first = 0
        while chunk := await self._read(subject, first):
            outcomes = await self._link.publish([request for _, request in chunk])
            stored = 0
            while stored < len(outcomes) and outcomes[stored] is STORED:
                stored += 1
            if stored:
                # Crash here: the copies are stored, and the originals are not deleted; see above.
                first = chunk[stored - 1][0] + 1
                await self._link.api(f"STREAM.PURGE.{self._names.delayed}", {"filter": subject, "seq": first})
            if stored < len(outcomes):
                return  # its queue is missing, or full: the next look finds it again

    async def _read(self, subject: str, first: int) -> list[tuple[int, Request]]:
        """Read the next messages of a subject, and make their copies."""
        found: list[tuple[int, Request]] = []
        size = 0
        while len(found) < CHUNK and size < CHUNK_BYTES:
            answer = await self._link.api(f"STREAM.MSG.GET.{self._names.delayed}", {"next_by_subj": subject, "seq": first})
            if answer is None:
                break
            message = answer["message"]
            found.append((message["seq"], self._copy(message)))
            size += len(found[-1][1].body)
            first = message["seq"] + 1
        return found

    def _copy(self, message: dict[str, Any]) -> Request:
        headers = read_headers(b64decode(message.get("hdrs", "")))
        name = f"{MOVED}{message['seq']}-{message['time']}"
        target = self._names.queue_subject(self._endpoint)
        return Request(target, b64decode(message.get("data", "")), write_headers(headers, msg_id=name))
