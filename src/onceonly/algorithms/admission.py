"""Admissions: what else must hold, beyond the store's own claim, before a message may be handled."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from onceonly.model.errors import CommitRefused
from onceonly.model.identity import claim_key, instant_in
from onceonly.model.message import Message
from onceonly.model.record import Effect, Record
from onceonly.model.token import TOKEN, Owner, Token
from onceonly.ports.admission import NO_FINGERPRINTS, AdmissionResult, MarkStore, TokenStore
from onceonly.ports.environment import IdGenerator

Subscribers = Mapping[str, Sequence[str]]
"""The endpoints that take an event, by its type."""


class StoreAdmission:
    """The store's claims are the whole rule: what `begin` calls new may be handled, and nothing else is kept anywhere."""

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Admit all of them: the claim has decided already."""
        return AdmissionResult(frozenset([message.identity for message in messages]))

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Prepare nothing."""
        return tuple(records)

    async def activate(self, records: Sequence[Record]) -> None:
        """Activate nothing."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Discard nothing."""

    async def retire(self, records: Sequence[Record]) -> None:
        """Retire nothing: the claim stays for its retention."""


class DedupStoreAdmission:
    """A dedup store elsewhere knows what is done, so that the store forgets everything (protocols, section 4)."""

    def __init__(self, endpoint: str, dedup_store: MarkStore) -> None:
        self._endpoint = endpoint
        self._done = dedup_store

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Admit what is not known to be done, unless that may be forgotten. A mark without a fingerprint fits every body."""
        by_key = {claim_key(self._endpoint, message.identity): message for message in messages}
        done = await self._done.contains(list(by_key)) if by_key else NO_FINGERPRINTS
        unknown = {message.identity: message for key, message in by_key.items() if key not in done}
        timed = [message for message in unknown.values() if message.instant]
        undecidable = await self._done.undecidable(timed) if timed else ()  # only now: a mark may go at any moment
        return AdmissionResult(
            frozenset(unknown.keys() - {each.message.identity for each in undecidable}),
            frozenset(by_key[key].identity for key, body in done.items() if body and body != by_key[key].fingerprint),
            undecidable,
        )

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Prepare nothing."""
        return tuple(records)

    async def activate(self, records: Sequence[Record]) -> None:
        """Activate nothing."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Discard nothing."""

    async def retire(self, records: Sequence[Record]) -> None:
        """Note what is done, before the store forgets it."""
        if records:
            keys = {record.identity: claim_key(self._endpoint, record.identity) for record in records}
            bodies = {keys[record.identity]: record.fingerprint for record in records if record.fingerprint}
            instants = {key: instant for identity, key in keys.items() if (instant := instant_in(identity))}
            await self._done.add(list(keys.values()), bodies, instants)


class TokenAdmission:
    """A message may be handled only while its token is live; its handling consumes it (protocols, section 5)."""

    def __init__(self, endpoint: str, tokens: TokenStore, subscribers: Subscribers, ids: IdGenerator) -> None:
        """Use this token store; `subscribers` say for whom an event's token is issued."""
        self._endpoint = endpoint
        self._tokens = tokens
        self._subscribers = subscribers
        self._ids = ids

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Admit those with a live token."""
        asked = {message.identity: Token(message.token, self._endpoint) for message in messages if message.token}
        live = await self._tokens.live(list(asked.values())) if asked else frozenset()
        return AdmissionResult(frozenset(identity for identity, token in asked.items() if token in live))

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Issue a token for every message of these records, and prepare it for each endpoint it goes to."""
        issued = tuple(issue(record, self._subscribers, self._ids) for record in records)
        owners = {token: Owner(self._endpoint, each.unit, each.identity) for each in issued for token in each.issued}
        if owners:
            await self._tokens.prepare(owners)
        return issued

    async def activate(self, records: Sequence[Record]) -> None:
        """Make the tokens live: the commit has confirmed them."""
        if issued := _issued(records):
            await self._tokens.activate(issued)

    async def discard(self, records: Sequence[Record]) -> None:
        """Remove this attempt's tokens, which cannot be confirmed any more."""
        if issued := _issued(records):
            await self._tokens.discard(issued)

    async def retire(self, records: Sequence[Record]) -> None:
        """Consume the tokens of what is done, before the store forgets it."""
        consumed = [Token(record.token, self._endpoint) for record in records if record.token]
        if consumed:
            await self._tokens.remove(consumed)


class TokensInStore:
    """The tokens are in the store's own database: its claim consumes them, and its commit makes them live."""

    def __init__(self, subscribers: Subscribers, ids: IdGenerator) -> None:
        self._subscribers = subscribers
        self._ids = ids

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Admit all of them: the claim has decided already."""
        return AdmissionResult(frozenset([message.identity for message in messages]))

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Issue tokens; the commit writes the tokens."""
        return tuple(issue(record, self._subscribers, self._ids) for record in records)

    async def activate(self, records: Sequence[Record]) -> None:
        """Activate nothing: the commit did."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Discard nothing: what was not committed never was."""

    async def retire(self, records: Sequence[Record]) -> None:
        """Retire nothing: the commit consumed the token."""


def issue(record: Record, subscribers: Subscribers, ids: IdGenerator) -> Record:
    """Return every message of a record a fresh token, the same for all endpoints that it goes to.

    It replaces one that came along with attributes handed on from another message, which is none of this one's.
    """
    effects: list[Effect] = []
    issued: list[Token] = []
    for effect in record.effects:
        id_ = ids.new_id()
        takers = (effect.to,) if effect.to else subscribers.get(effect.message.type)
        if takers is None:
            raise CommitRefused(
                f"event type {effect.message.type!r} has no declared subscribers: list them in Tokens(subscribers=...)"
            )
        issued += [Token(id_, endpoint) for endpoint in takers]
        others = [(name, value) for name, value in effect.message.extensions if name != TOKEN]
        message = replace(effect.message, extensions=(*others, (TOKEN, id_)))
        effects.append(replace(effect, message=message))
    return replace(record, effects=tuple(effects), issued=tuple(issued))


def _issued(records: Sequence[Record]) -> list[Token]:
    return [token for record in records for token in record.issued]
