"""Tokens on documents: one small document for each token, which states whether it is prepared or live.

Every write names the version it expects, so states only move forward: prepared, live, gone. A token that was consumed cannot
come back, however late a stalled worker's write lands, because ids and versions are never used twice.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from onceonly.documents.compare_and_set import Decide, compare_and_set, listed, removal
from onceonly.documents.recent import RecentDocuments
from onceonly.formats.undecodable import UNDECODABLE, report_undecodable
from onceonly.model.errors import ConflictError, PermanentFailure, UpgradeRequired
from onceonly.model.identity import Identity
from onceonly.model.limits import StoredInt
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock

_PREFIX = "token/"


class Body(Struct, frozen=True, omit_defaults=True):
    """What a token's document says. While it is prepared: its owner, and when that was, in milliseconds since 1970."""

    state: Literal["prepared", "live"]
    endpoint: str = ""
    unit: str = ""
    source: str = ""
    id: str = ""
    at: StoredInt = 0


class TokenState(Struct, frozen=True):
    """The state in a token's document, whatever it is."""

    state: str


class TokenCounts(NamedTuple):
    """How many tokens of each state there are; `more` means that not all were counted."""

    prepared: int
    live: int
    more: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Body).decode
_decode_state = msgspec.json.Decoder(TokenState).decode
_LIVE = _encode(Body("live"))


class DocumentTokens:
    """Tokens in a place for documents; keys are `token/<endpoint>/<id>`. Implements the TokenStore port.

    The documents that this process read or wrote last are guesses. They save reads, and decide nothing.
    """

    def __init__(self, documents: Documents, *, clock: Clock) -> None:
        """Use a place for documents; the clock says when tokens were prepared."""
        self._documents = documents
        self._clock = clock
        self._recent = RecentDocuments()

    async def prepare(self, owners: Mapping[Token, Owner]) -> None:
        now = self._clock.now()
        changes = [Change(key=name, body=_body(owners[token], now)) for name, token in _names(list(owners)).items()]
        answers = await self._documents.save(changes) if changes else ()
        for change, version in zip(changes, answers, strict=True):
            if version is None:
                raise ConflictError(f"document {change.key!r} already exists: a token with this id was issued before")
            self._recent.add(change.key, Document(change.body or b"", version))

    async def activate(self, tokens: Sequence[Token]) -> None:
        """Make tokens live; see the port. Nothing is looked up for those that this process prepared."""
        await self._set(tokens, _activate)

    async def live(self, tokens: Sequence[Token]) -> frozenset[Token]:
        """Return which are live; see the port. Raises PermanentFailure, UpgradeRequired for one that cannot be read."""
        names = _names(tokens)
        found = await self._documents.load(list(names)) if names else {}
        live = {name: document for name, document in found.items() if _read(name, document).state == "live"}
        for name, document in live.items():
            self._recent.add(name, document)
        return frozenset(names[name] for name in live)

    async def remove(self, tokens: Sequence[Token]) -> None:
        """Remove tokens; see the port. Nothing is looked up for those that this process found live."""
        await self._set(tokens, removal)

    async def discard(self, tokens: Sequence[Token]) -> None:
        await self._set(tokens, _discard)

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List tokens, in the order of their keys; see the port. It reads live ones on the way too."""

        def read(name: str, document: Document) -> PreparedToken | None:
            body = _read(name, document)
            return _prepared(name, body) if body.state == "prepared" and body.at < older_than else None

        return await listed(self._documents, _PREFIX, read, limit)

    async def add(self, tokens: Sequence[Token]) -> None:
        """Make these live at once, for messages that come from outside; harmless for those that are.

        Raises CommitFailed, OutcomeUnknown.
        """
        names = _names(tokens)
        await compare_and_set(self._documents, names, _add, guesses=dict.fromkeys(names))

    async def census(self, endpoint: str, limit: int) -> TokenCounts:
        """Count the tokens of messages to an endpoint, `limit` at most; may be stale. Raises CommitFailed, OutcomeUnknown."""
        names = await self._documents.keys(f"{_PREFIX}{endpoint}/", limit=limit + 1)
        loaded = await self._documents.load(names[:limit]) if names else {}
        states = [body.state for name, document in loaded.items() if (body := _readable(name, document))]
        return TokenCounts(states.count("prepared"), states.count("live"), len(names) > limit)

    async def _set(self, tokens: Sequence[Token], decide: Decide) -> None:
        names = _names(tokens)
        await compare_and_set(self._documents, names, decide, guesses=self._recent.take(names))


def live_token_size(token: Token) -> int:
    """Return the bytes of a live token and of its key."""
    (name,) = _names([token])
    return len(_LIVE) + len(name)


def _add(name: str, found: Document | None) -> Change | None:
    return _activate(name, found) if found else Change(key=name, body=_LIVE)


def _activate(name: str, found: Document | None) -> Change | None:
    if found is None:
        return None
    try:
        if _read(name, found).state == "live":
            return None
    except PermanentFailure as error:  # it was not consumed: then it would be gone
        report_undecodable("token", name, error, "made live")
    return Change(key=name, body=_LIVE, expected=found.version)


def _discard(name: str, found: Document | None) -> Change | None:
    body = _readable(name, found) if found else None
    return removal(name, found) if body and body.state == "prepared" else None


def _names(tokens: Sequence[Token]) -> Mapping[str, Token]:
    return {f"{_PREFIX}{token.endpoint}/{token.id}": token for token in tokens}


def _body(owner: Owner, at: int) -> bytes:
    return _encode(Body("prepared", owner.endpoint, owner.unit, owner.identity.source, owner.identity.id, at))


def _read(name: str, document: Document) -> Body:
    """Read a token. Raises PermanentFailure, for which only its message is given up, and UpgradeRequired for a newer one."""
    try:
        return _decode(document.body)
    except UNDECODABLE as error:
        if _is_newer(document.body):
            raise UpgradeRequired(
                f"document {name!r} has a token that a newer onceonly wrote ({error}): upgrade onceonly in this process"
            ) from error
        raise PermanentFailure(f"document {name!r} is not a readable token ({error}): delete it") from error


def _readable(name: str, document: Document) -> Body | None:
    """Return a token, or None for one that cannot be read: it is left as it is."""
    try:
        return _read(name, document)
    except (PermanentFailure, UpgradeRequired) as error:
        report_undecodable("token", name, error, "left as it is")
        return None


def _is_newer(body: bytes) -> bool:
    """Return whether this is a token in a state that this version does not have."""
    try:
        return _decode_state(body).state not in ("prepared", "live")
    except UNDECODABLE:
        return False


def _prepared(name: str, body: Body) -> PreparedToken:
    endpoint, _, token_id = name.removeprefix(_PREFIX).partition("/")
    return PreparedToken(Token(token_id, endpoint), Owner(body.endpoint, body.unit, Identity(body.source, body.id)), body.at)
