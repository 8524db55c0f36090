"""Broken token stores."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.admission import TokenStore
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.store_subject import LATER
from onceonly_conformance.suite import ENDPOINT, OTHER
from onceonly_conformance.token_suite import OWNER, TokenSubject

PAGE = 100


class WrappedTokenStore:
    """A token store whose calls go through a `WrappedTokens`; `known` is for what this process alone remembers."""

    def __init__(self, owner: "WrappedTokens", inner: TokenStore) -> None:
        self.inner = inner
        self.known: dict[Token, bool] = {}
        self._owner = owner

    async def prepare(self, owners: Mapping[Token, Owner]) -> None:
        """Prepare, as the wrapper does it."""
        await self._owner.prepare(self, owners)

    async def activate(self, tokens: Sequence[Token]) -> None:
        """Activate, as the wrapper does it."""
        await self._owner.activate(self, tokens)

    async def live(self, tokens: Sequence[Token]) -> frozenset[Token]:
        """Look, as the wrapper does it."""
        return await self._owner.live(self, tokens)

    async def remove(self, tokens: Sequence[Token]) -> None:
        """Remove, as the wrapper does it."""
        await self._owner.remove(self, tokens)

    async def discard(self, tokens: Sequence[Token]) -> None:
        """Discard, as the wrapper does it."""
        await self._owner.discard(self, tokens)

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List, as the wrapper does it."""
        return await self._owner.prepared(self, older_than, limit)


class WrappedTokens:
    """A subject that passes everything on. What breaks a promise overrides one of these methods."""

    def __init__(self, inner: TokenSubject) -> None:
        self.subject = inner
        self.seen: set[Token] = set()
        """For what a broken service remembers."""

    async def tokens(self) -> TokenStore:
        """Open a store."""
        return WrappedTokenStore(self, await self.subject.tokens())

    async def cut(self, moment: Moment) -> TokenStore:
        """Open a store that is cut off once."""
        return WrappedTokenStore(self, await self.subject.cut(moment))

    def now(self) -> int:
        """Return the time."""
        return self.subject.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.subject.pass_time(milliseconds)

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Prepare tokens."""
        self.seen.update(owners)
        await store.inner.prepare(owners)

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Activate tokens."""
        await store.inner.activate(tokens)

    async def live(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> frozenset[Token]:
        """Look tokens up."""
        return await store.inner.live(tokens)

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Remove tokens."""
        await store.inner.remove(tokens)

    async def discard(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Discard tokens."""
        await store.inner.discard(tokens)

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List tokens."""
        return await store.inner.prepared(older_than, limit)


class AgreeableTokens(WrappedTokens):
    """Every token is live."""

    async def live(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> frozenset[Token]:
        """Return all."""
        return frozenset(tokens)


class EagerTokens(WrappedTokens):
    """Knows one state only."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Make them live at once."""
        await store.inner.prepare(owners)
        await store.inner.activate(list(owners))


class UnitlessTokens(WrappedTokens):
    """Forgets which entity has to be asked."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Drop it."""
        await store.inner.prepare({token: owner._replace(unit="") for token, owner in owners.items()})


class OneOwnerTokens(WrappedTokens):
    """Takes all tokens of a call for those of one owner."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Return the first one all."""
        await store.inner.prepare(dict.fromkeys(owners, next(iter(owners.values()), OWNER)))


class UndatedTokens(WrappedTokens):
    """Forgets when."""

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """Drop the instant."""
        return tuple(each._replace(at=0) for each in await store.inner.prepared(older_than, limit))


class EntityTokens(WrappedTokens):
    """Looks among those of entities only."""

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """Leave out the others."""
        return tuple(each for each in await store.inner.prepared(older_than, limit) if each.owner.unit)


class OverwritingTokens(WrappedTokens):
    """Writes without looking what is there."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Replace."""
        await store.inner.remove(list(owners))
        await store.inner.prepare(owners)


class IgnoringTokens(WrappedTokens):
    """Leaves what is there, and does not say that it was."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Hide it."""
        with suppress(ConflictError):
            await store.inner.prepare(owners)


class CachingTokens(WrappedTokens):
    """Answers what it answered before, as a stale replica does."""

    async def live(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> frozenset[Token]:
        """Ask once for each token."""
        found = await store.inner.live(tokens)
        return frozenset(each for each in tokens if store.known.setdefault(each, each in found))


class ListCachingTokens(WrappedTokens):
    """Never finds out that a prepared token is prepared no more."""

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List whatever was ever prepared."""
        return tuple(PreparedToken(each, OWNER, 0) for each in self.seen)[:limit]


class OthersTokens(WrappedTokens):
    """Does not see what it prepared or found live itself."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Note it."""
        store.known.update(dict.fromkeys(owners, True))
        await store.inner.prepare(owners)

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Leave them out."""
        await store.inner.activate([each for each in tokens if each not in store.known])

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Leave them out."""
        await store.inner.remove([each for each in tokens if each not in store.known])


class StrictTokens(WrappedTokens):
    """Complains when there is nothing to do."""

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Look first."""
        ready = {each.token for each in await store.inner.prepared(LATER, 1000)}
        if not ready.issuperset(tokens):
            raise ConflictError("there is no such prepared token")
        await store.inner.activate(tokens)

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Look first."""
        there = {each.token for each in await store.inner.prepared(LATER, 1000)} | await store.inner.live(tokens)
        if not there.issuperset(tokens):
            raise LookupError("there is no such token")
        await store.inner.remove(tokens)


class GreedyTokens(WrappedTokens):
    """Activates and discards all there are."""

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Activate everything."""
        await store.inner.activate(list(self.seen))

    async def discard(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Discard everything."""
        await store.inner.discard(list(self.seen))


class UpsertTokens(WrappedTokens):
    """Makes tokens live without looking whether they are prepared."""

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Write them."""
        with suppress(ConflictError):
            await store.inner.prepare(dict.fromkeys(tokens, OWNER))
        await store.inner.activate(tokens)


class TwoStepTokens(WrappedTokens):
    """Looks whether a token is prepared, and makes it live after that."""

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Look, then write."""
        ready = {each.token for each in await store.inner.prepared(LATER, 1000)}.intersection(tokens)
        for _ in range(10):
            await asyncio.sleep(0)
        for each in ready:
            with suppress(ConflictError):
                await store.inner.prepare({each: OWNER})
        await store.inner.activate(tokens)


class EndpointBlindTokens(WrappedTokens):
    """Consumes the tokens of all subscribers at once."""

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Ignore the endpoint."""
        await store.inner.remove([Token(each.id, endpoint) for each in tokens for endpoint in (ENDPOINT, OTHER)])


class CaselessTokens(WrappedTokens):
    """Keeps ids under a collation that ignores case."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Prepare in lower case."""
        await store.inner.prepare({each._replace(id=each.id.lower()): owner for each, owner in owners.items()})


class OnePageTokens(WrappedTokens):
    """Writes what fits into one request."""

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Drop the rest."""
        await store.inner.activate(tokens[:PAGE])


class SweepingTokens(WrappedTokens):
    """Removes more than it was asked to."""

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Remove everything."""
        await store.inner.remove(list(self.seen))


class KeepingTokens(WrappedTokens):
    """Removes nothing."""

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Do nothing."""

    async def discard(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Do nothing."""


class RuthlessTokens(WrappedTokens):
    """Discards live tokens as well."""

    async def discard(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Remove them."""
        await store.inner.remove(tokens)


class AgelessTokens(WrappedTokens):
    """Lists all, however young."""

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """Ignore the age."""
        return await store.inner.prepared(LATER, limit)


class UnlimitedTokens(WrappedTokens):
    """Lists all, however many."""

    async def prepared(self, store: WrappedTokenStore, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """Ignore the limit."""
        return await store.inner.prepared(older_than, 1000)


class LockingTokens(WrappedTokens):
    """Lets nobody write what somebody is writing, and forgets to unlock when it is cancelled."""

    def __init__(self, inner: TokenSubject) -> None:
        super().__init__(inner)
        self._locked: set[Token] = set()

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Lock, activate, unlock."""
        await self._lock(tokens)
        await store.inner.activate(tokens)
        self._locked.difference_update(tokens)

    async def discard(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Lock, discard, unlock."""
        await self._lock(tokens)
        await store.inner.discard(tokens)
        self._locked.difference_update(tokens)

    async def _lock(self, tokens: Sequence[Token]) -> None:
        if self._locked.intersection(tokens):
            raise CommitFailed("somebody else is writing it")
        self._locked.update(tokens)
        await asyncio.sleep(0)


class VagueTokens(WrappedTokens):
    """Says that it failed, or that somebody else won, whenever it does not know."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Translate."""
        try:
            await store.inner.prepare(owners)
        except OutcomeUnknown as error:
            raise ConflictError("it is there already") from error

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Translate."""
        try:
            await store.inner.activate(tokens)
        except OutcomeUnknown as error:
            raise CommitFailed("it did not work") from error

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Translate."""
        try:
            await store.inner.remove(tokens)
        except OutcomeUnknown as error:
            raise CommitFailed("it did not work") from error


class HopefulTokens(WrappedTokens):
    """Takes a lost answer for a good one."""

    async def prepare(self, store: WrappedTokenStore, owners: Mapping[Token, Owner]) -> None:
        """Hide it."""
        with suppress(OutcomeUnknown):
            await store.inner.prepare(owners)

    async def activate(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Hide it."""
        with suppress(OutcomeUnknown):
            await store.inner.activate(tokens)

    async def remove(self, store: WrappedTokenStore, tokens: Sequence[Token]) -> None:
        """Hide it."""
        with suppress(OutcomeUnknown):
            await store.inner.remove(tokens)
