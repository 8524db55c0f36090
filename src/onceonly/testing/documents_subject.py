"""What the rules about documents look at, and how: a place under test, and looks at it by another client than the writer's."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Literal, NamedTuple, Protocol

from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.ports.documents import Change, Document, Documents, Version
from onceonly.testing.suite import raises

__all__ = ["DocumentsSubject", "Moment"]

Moment = Literal["before", "after"]
"""When a write is cut off: before the service has got it, or after it has applied it and before its answer is through."""

FRESH = 0.7
DELETED = 0.3
KEY = "order/17"
OTHER_KEY = "order/18"


class DocumentsSubject(Protocol):
    """One place for documents, under test; empty at first."""

    async def documents(self) -> Documents:
        """Open the place, each time with a client of its own, as another process would."""

    async def cut(self, moment: Moment) -> Documents:
        """Open the place with a client whose next write is cut off once; whatever it sends after that gets through.

        So a client that sends the cut write again by itself reaches the service, and is found out. Reads are not cut.
        """

    async def missing(self) -> Documents:
        """Open a place that was never made, on the same service."""

    def now(self) -> int:
        """Give the service's time, milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the service's time pass; where that is the time of the world, wait for it."""


async def look(subject: DocumentsSubject, *keys: str) -> Mapping[str, Document]:
    """Load as a process of its own."""
    return await (await subject.documents()).load(keys)


async def bodies(subject: DocumentsSubject, *keys: str) -> dict[str, bytes]:
    """Load the bodies, as a process of its own."""
    return {key: document.body for key, document in (await look(subject, *keys)).items()}


async def save(subject: DocumentsSubject, *changes: Change) -> tuple[Version | None, ...]:
    """Save as a process of its own."""
    return await (await subject.documents()).save(changes)


async def put(subject: DocumentsSubject, key: str = KEY, body: bytes = b"first") -> Version:
    """Insert one document; gives its version."""
    (version,) = await save(subject, Change(key=key, body=body))
    assert version, f"a new document must be inserted; the answer was {version!r}"
    return version


async def every_key(documents: Documents, prefix: str = "", *, limit: int = 1000) -> list[str]:
    """List page by page, to the end."""
    listed: list[str] = []
    while page := await documents.keys(prefix, after=listed[-1] if listed else "", limit=limit):
        assert len(page) <= limit
        listed += page
        assert len(listed) == len(set(listed)), "a key is listed twice"
    return listed


async def listed(
    subject: DocumentsSubject, expected: set[str], prefix: str = "", *, limit: int = 1000, patience: float
) -> list[str]:
    """List until these keys and no others are there, for `patience` seconds: a list may be some seconds old."""
    documents = await subject.documents()
    found: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while set(found := await every_key(documents, prefix, limit=limit)) != expected:
                await subject.pass_time(100)
                await asyncio.sleep(0)
    missing, strange = sorted(expected - set(found)), sorted(set(found) - expected)
    assert (missing, strange) == ([], []), f"keys that begin with {prefix!r}: {missing} are missing, {strange} are too many"
    return found


async def cut_off(subject: DocumentsSubject, moment: Moment, *changes: Change) -> None:
    """Save, and be cut off.

    After it was applied only OutcomeUnknown is true; before it, any answer but one about the change is.
    """
    documents = await subject.cut(moment)
    before = (OutcomeUnknown, CommitFailed) if moment == "before" else (OutcomeUnknown,)
    async with raises(*before):
        await documents.save(changes)


async def race(clients: Sequence[Documents], changes: Sequence[Change]) -> list[int]:
    """Save each change by a client of its own, all at once; gives the numbers of those that won."""
    answers = await asyncio.gather(*(client.save([change]) for client, change in zip(clients, changes, strict=True)))
    return [number for number, (version,) in enumerate(answers) if version is not None]


async def clients(subject: DocumentsSubject, count: int) -> list[Documents]:
    """Open the place so often."""
    return [await subject.documents() for _ in range(count)]


async def add_one(subject: DocumentsSubject, times: int) -> None:
    """Add one to a number so often, each time from what is read, until nobody else was faster."""
    documents = await subject.documents()
    for _ in range(times):
        is_done = False
        while not is_done:
            document = (await documents.load([KEY]))[KEY]
            changed = Change(key=KEY, body=b"%d" % (int(document.body) + 1), expected=document.version)
            is_done = await documents.save([changed]) != (None,)


class ObservedWrite(NamedTuple):
    """A write that was answered: from which version to which; empty where there was or is no document."""

    key: str
    old: Version
    new: Version


async def write_at_random(documents: Documents, dice: Random, keys: Sequence[str], *, times: int) -> list[ObservedWrite]:
    """Insert, replace and delete some keys at once, some of them from what was read long ago; gives what was written."""
    written: list[ObservedWrite] = []
    known = dict.fromkeys(keys, "")
    for _ in range(times):
        some = dice.sample(keys, dice.randint(1, len(keys)))
        if dice.random() < FRESH:
            found = await documents.load(some)
            known |= {key: found[key].version if key in found else "" for key in some}
        changes = [_change(key, known[key], dice) for key in some]
        with suppress(CommitFailed):  # two were in each other's way, and nothing happened
            answers = zip(changes, await documents.save(changes), strict=True)
            done = [ObservedWrite(change.key, change.expected, answer) for change, answer in answers if answer is not None]
            written += done
            known |= {each.key: each.new for each in done}
    return written


def _change(key: str, version: Version, dice: Random) -> Change:
    is_deleted = bool(version) and dice.random() < DELETED
    return Change(key=key, body=None if is_deleted else b"%d" % dice.getrandbits(30), expected=version)


def same(stored: bytes, found: bytes) -> bool:
    """Compare bodies: exactly, but that a JSON text may come back with another order of keys and other spaces."""
    return stored == found or (_meaning(stored) is not None and _meaning(stored) == _meaning(found))


def _meaning(body: bytes) -> str | None:
    try:
        return json.dumps(json.loads(body), sort_keys=True)
    except ValueError:
        return None
