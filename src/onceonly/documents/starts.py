"""Starts on documents: one document for each run that has its process to itself, until it ends. Ordinary runs write nothing."""

from collections.abc import Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct

from onceonly.model.errors import Failed
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.documents import Change, Documents
from onceonly.ports.starts import BEGUN, NO_DEATHS, Deaths, Started
from onceonly.ports.surroundings import Clock

TRIES = 5
"""How often a change is made again after another process was faster."""


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
        for _ in range(TRIES):
            now = self._clock.now()
            document = (await self._documents.load([key])).get(key)
            found = _decode(document.body) if document else None
            if found is not None and found.attempts >= attempts and found.until > now:
                return Started(wait=(found.until - now) / 1000)
            died = found.attempts if found is not None and found.attempts >= attempts else None
            body = None if died is not None else _encode(Run(attempts, token, now + self._lasts))
            change = Change(key=key, body=body, expected=document.version if document else "")
            if (await self._documents.save([change]))[0] is not None:
                return BEGUN if died is None else Started(died=died)
        raise Failed(f"{key!r} was written by others {TRIES} times in a row; try again")

    async def ended(self, identity: Identity) -> None:
        """Remove the document, unless another run has replaced it. Raises Failed, Unknown."""
        key = self._key(identity)
        token = self._tokens.get(key)
        if token is not None:
            document = (await self._documents.load([key])).get(key)
            if document is not None and _decode(document.body).token == token:
                await self._documents.save([Change(key=key, body=None, expected=document.version)])
            self._tokens.pop(key, None)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the document of a run whose death was counted; see the port. Raises Failed, Unknown."""
        key = self._key(identity)
        document = (await self._documents.load([key])).get(key)
        if document is not None and _decode(document.body).attempts <= attempts:
            await self._documents.save([Change(key=key, body=None, expected=document.version)])

    def _key(self, identity: Identity) -> str:
        return f"start/{claim_key(self._endpoint, identity).hex()}"
