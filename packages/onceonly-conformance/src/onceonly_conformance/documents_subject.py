"""What the rules about documents share: a collection under test, and functions that check it with separate clients."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Literal, NamedTuple, Protocol

from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.ports.documents import Change, Document, Documents, Version
from onceonly_conformance.suite import raises

Moment = Literal["before", "after"]
"""When a write is cut off: before the service receives it, or after it is applied and before the response arrives."""

FRESH = 0.7
DELETED = 0.3
KEY = "order/17"
OTHER_KEY = "order/18"


class DocumentsSubject(Protocol):
    """A collection of documents under test, empty at first."""

    async def documents(self) -> Documents:
        """Open the documents with a new client, as another process would."""

    async def cut(self, moment: Moment) -> Documents:
        """Open the documents with a client whose next write is cut off once. Everything it sends later succeeds.

        A client that retries the cut write therefore reaches the service, and the rule detects the retry. Reads are not cut
        off.
        """

    async def missing(self) -> Documents:
        """Open a collection that was never created, on the same service."""

    def now(self) -> int:
        """Return the service's time, in milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the service's time pass. A service with the real time waits for it."""


async def look(subject: DocumentsSubject, *keys: str) -> Mapping[str, Document]:
    """Load documents with a new client."""
    return await (await subject.documents()).load(keys)


async def bodies(subject: DocumentsSubject, *keys: str) -> dict[str, bytes]:
    """Load bodies with a new client."""
    return {key: document.body for key, document in (await look(subject, *keys)).items()}


async def stored_document(subject: DocumentsSubject) -> tuple[bytes, Version]:
    """Load the one document that there is, with a new client."""
    (document,) = (await look(subject, KEY)).values()
    return document.body, document.version


async def save(subject: DocumentsSubject, *changes: Change) -> tuple[Version | None, ...]:
    """Save with a new client."""
    return await (await subject.documents()).save(changes)


async def put(subject: DocumentsSubject, key: str = KEY, body: bytes = b"first") -> Version:
    """Insert one document and return its version."""
    (version,) = await save(subject, Change(key=key, body=body))
    assert version, f"the insert of a new document returned {version!r} instead of a version"
    return version


async def every_key(documents: Documents, prefix: str = "", *, limit: int = 1000) -> list[str]:
    """List all pages."""
    listed: list[str] = []
    while page := await documents.keys(prefix, after=listed[-1] if listed else "", limit=limit):
        assert len(page) <= limit
        listed += page
        assert len(listed) == len(set(listed)), "`keys` returned a key twice"
    return listed


async def listed(
    subject: DocumentsSubject, expected: set[str], prefix: str = "", *, limit: int = 1000, patience: float
) -> list[str]:
    """List until exactly these keys are returned, for at most `patience` seconds. A list may be some seconds old."""
    documents = await subject.documents()
    found: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while set(found := await every_key(documents, prefix, limit=limit)) != expected:
                await subject.pass_time(100)
                await asyncio.sleep(0)
    missing, strange = sorted(expected - set(found)), sorted(set(found) - expected)
    assert (missing, strange) == ([], []), f"keys with prefix {prefix!r}: missing {missing}, unexpected {strange}"
    return found


async def cut_off(subject: DocumentsSubject, moment: Moment, *changes: Change) -> None:
    """Save with a client that is cut off.

    After the change was applied, only OutcomeUnknown is correct. Before it, CommitFailed is correct as well.
    """
    documents = await subject.cut(moment)
    before = (OutcomeUnknown, CommitFailed) if moment == "before" else (OutcomeUnknown,)
    async with raises(*before):
        await documents.save(changes)


async def race(clients: Sequence[Documents], changes: Sequence[Change]) -> list[int]:
    """Save each change with its own client, all at once. Return the numbers of those that succeeded."""
    answers = await asyncio.gather(*(client.save([change]) for client, change in zip(clients, changes, strict=True)))
    return [number for number, (version,) in enumerate(answers) if version is not None]


async def clients(subject: DocumentsSubject, count: int) -> list[Documents]:
    """Open this many clients."""
    return [await subject.documents() for _ in range(count)]


async def add_one(subject: DocumentsSubject, times: int) -> None:
    """Increment a counter this many times. Read it again after each refused write."""
    documents = await subject.documents()
    for _ in range(times):
        is_done = False
        while not is_done:
            document = (await documents.load([KEY]))[KEY]
            changed = Change(key=KEY, body=b"%d" % (int(document.body) + 1), expected=document.version)
            is_done = await documents.save([changed]) != (None,)


class ObservedWrite(NamedTuple):
    """A write that succeeded, with the versions before and after. A version is empty where no document exists."""

    key: str
    old: Version
    new: Version


async def write_at_random(documents: Documents, dice: Random, keys: Sequence[str], *, times: int) -> list[ObservedWrite]:
    """Insert, replace and delete some keys at once, also at versions that were read earlier. Return what was written."""
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
    """Return whether two bodies are equal. JSON may differ in the order of names and in white space."""
    return stored == found or (_meaning(stored) is not None and _meaning(stored) == _meaning(found))


def _meaning(body: bytes) -> str | None:
    try:
        return json.dumps(json.loads(body), sort_keys=True)
    except ValueError:
        return None
