"""Starts on documents: one document for each run that has its process to itself, until it ends. Ordinary runs write nothing."""

from collections.abc import Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct

from onceonly.documents.compare_and_set import compare_and_set
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.starts import BEGUN, NO_DEATHS, Deaths, Started
from onceonly.ports.surroundings import Clock


class Run(Struct, frozen=True):
    """A run that has not ended. It counts as dead at `until`, in milliseconds since 1970."""

    attempts: int
    token: str
    until: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Run).decode


class DocumentStarts:
    """The runs of one endpoint. By the processes' clocks: one that has not ended after `lasts` seconds counts as dead."""

    def __init__(self, documents: Documents, endpoint: str, clock: Clock, lasts: float) -> None:
        """Use a place for documents; keys begin with `start/`."""
        self._documents = documents
        self._endpoint = endpoint
        self._lasts = int(lasts * 1000)
        self._clock = clock
        self._tokens: dict[str, str] = {}

    async def died(self, identities: Sequence[Identity]) -> Deaths:
        """Return nothing: a document store sees no process die."""
        return NO_DEATHS

    async def begin(self, identity: Identity, attempts: int) -> Started:
        """Record that a run begins; see the port."""
        key = self._key(identity)
        token = self._tokens[key] = uuid4().hex
        started = BEGUN

        def begun(key: str, document: Document | None) -> Change | None:
            nonlocal started
            now, found = self._clock.now(), _decode(document.body) if document else None
            expected = document.version if document else ""
            if found is None or found.attempts < attempts:
                started = BEGUN
                return Change(key=key, body=_encode(Run(attempts, token, now + self._lasts)), expected=expected)
            if found.until > now:
                started = Started(wait=(found.until - now) / 1000)
                return None
            started = Started(died=found.attempts)
            return Change(key=key, body=None, expected=expected)

        await compare_and_set(self._documents, [key], begun)
        return started

    async def ended(self, identity: Identity) -> None:
        """Remove the document, unless another run has replaced it. Raises Failed, Unknown."""
        key = self._key(identity)
        token = self._tokens.get(key)

        def removed(key: str, document: Document | None) -> Change | None:
            is_own = document is not None and _decode(document.body).token == token
            return Change(key=key, body=None, expected=document.version) if document and is_own else None

        if token is not None:
            await compare_and_set(self._documents, [key], removed)
            self._tokens.pop(key, None)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the document of a run whose death was counted; see the port. Raises Failed, Unknown."""
        key = self._key(identity)
        document = (await self._documents.load([key])).get(key)
        if document is not None and _decode(document.body).attempts <= attempts:
            await self._documents.save([Change(key=key, body=None, expected=document.version)])

    def _key(self, identity: Identity) -> str:
        return f"start/{claim_key(self._endpoint, identity).hex()}"
