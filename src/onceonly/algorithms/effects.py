"""Artifacts that appear once or never: the register row is the permission to commit them (protocols, section 6).

    register  open a row for each attempt, before its unit begins
    create    create the artifacts, under names of that attempt alone
    commit    the store takes the row away in the same write; one that is cancelled or gone is a ConflictError
    clean     cancel the row; no row any more: stop, its artifacts were published; else delete them
    discard   the same for the own attempt, which has lost
    sweep     the same, when an attempt is so old that nothing of it can be under way any more; then remove the row

So it does not matter which attempt was the committed one: cancelling a row proves that it never will be.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from onceonly.algorithms.remote_call import callers_of, perform, responses_of
from onceonly.algorithms.sweeper import sweep_each
from onceonly.model.artifact import Reservation
from onceonly.model.errors import CommitRefused, PeerAway
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Answer, Record
from onceonly.model.remote import HTTP, peer_of
from onceonly.ports.effects import ArtifactStore, Register, Responses
from onceonly.ports.environment import Clock, IdGenerator
from onceonly.ports.remote import Peers, Remote
from onceonly.ports.store import Store

NO_PEERS = "this message follows up a request to another service, but the endpoint has no peers: set Endpoint(..., peers=[...])"
_Away = dict[str, PeerAway]
"""The peers that did not answer in one call of the effects, each with its error. They are not asked again in that call."""


class NoArtifacts:
    """The effects of an endpoint that makes nothing but messages."""

    async def register(self, messages: Sequence[Message]) -> Mapping[Identity, str]:
        """Register nothing."""
        return {}

    async def create(self, records: Sequence[Record]) -> None:
        """Make nothing."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Delete nothing."""

    async def clean(self, records: Sequence[Record]) -> None:
        """Clean nothing."""

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Call no service: calls that an earlier setting left wait for it to come back."""
        return dict.fromkeys((record.identity for record in records if record.requests), Answer.UNKNOWN)

    async def responses(self, messages: Sequence[Message]) -> Responses:
        """Return why there are none, for requests and calls of an earlier setting."""
        return {message.identity: CommitRefused(NO_PEERS) for message in messages}


class RegisteredEffects:
    """The effects of an endpoint that makes artifacts, each kind through its own adapter."""

    def __init__(
        self,
        store: Store,
        register: Register,
        artifacts: Mapping[str, ArtifactStore],
        *,
        ids: IdGenerator,
        clock: Clock,
        remote: Remote | None = None,
    ) -> None:
        """Keep the rows in this register, which is part of this store; without `remote` no other service is called."""
        self._store = store
        self._register = register
        self._artifacts = artifacts
        self._ids = ids
        self._clock = clock
        self._remote = remote

    def with_peers(self, peers: Peers) -> "RegisteredEffects":
        """Return the same effects with these other services instead of its own, such as those of a test."""
        artifacts = {**self._artifacts, HTTP: peers}
        return RegisteredEffects(self._store, self._register, artifacts, ids=self._ids, clock=self._clock, remote=peers)

    async def register(self, messages: Sequence[Message]) -> Mapping[Identity, str]:
        """Open a row for each message under a fresh attempt's id."""
        now = self._clock.now()
        rows = [
            Reservation(identity=message.identity, unit=self._store.unit_key(message), attempt=self._ids.new_id(), at=now)
            for message in messages
        ]
        await self._register.open(rows)
        return {row.identity: row.attempt for row in rows}

    async def create(self, records: Sequence[Record]) -> None:
        """Make the artifacts one by one; until the commit their names are not known elsewhere.

        Raises PeerAway with all messages that need this peer, so that it is asked once for a unit.
        """
        for record in records:
            for artifact in record.artifacts:
                if not artifact.name.startswith(f"{record.attempt}/"):
                    raise CommitRefused(
                        f"{artifact.kind} {artifact.name!r} belongs to another attempt: use the context of its handler"
                    )
                try:
                    await self._artifacts[artifact.kind].create(artifact)
                except PeerAway as away:
                    away.needed_by = callers_of(away.peer, records)
                    raise

    async def discard(self, records: Sequence[Record]) -> None:
        """Clean up after these attempts, which can never be committed; one whose row is gone was swept while it was at work.

        The rows stay cancelled: a proxy may have repeated the request that made an artifact, and it lands after the deletion.
        The sweeper looks again when nothing can be under way any more.
        """
        away: _Away = {}
        for record in records:
            if record.attempt:
                row = Reservation(identity=record.identity, unit=record.unit, attempt=record.attempt)
                await self._register.cancel(row)
                await self._delete(row, away)

    async def clean(self, records: Sequence[Record]) -> None:
        """Clean up after whatever else tried to handle these messages.

        Another attempt may still be at work, or a call of it under way: its row stays cancelled, for the sweeper to look again.
        """
        own = {record.attempt for record in records}
        away: _Away = {}
        for unit in dict.fromkeys(record.unit for record in records):
            identities = [record.identity for record in records if record.unit == unit]
            for row in await self._register.rows(identities, unit):
                if not row.cancelled and await self._register.cancel(row):
                    # its own made nothing
                    await (self._register.remove(row) if row.attempt in own else self._delete(row, away))

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Make the calls, where other services are known."""
        return await (NoArtifacts().call(records) if self._remote is None else perform(records, self._remote))

    async def responses(self, messages: Sequence[Message]) -> Responses:
        """Read the responses, where other services are known."""
        return await (NoArtifacts().responses(messages) if self._remote is None else responses_of(messages, self._remote))

    async def sweep(self, older_than: int, limit: int) -> int:
        """Clean up after attempts that began before `older_than` (milliseconds since 1970); gives for how many it could.

        A peer that is away is asked once, and is not a failure: the rows stay for the next time. Raises CommitFailed,
        OutcomeUnknown.
        """
        away: _Away = {}
        return await sweep_each(lambda most: self._register.old(older_than, most), partial(self._clean, away=away), limit)

    async def _clean(self, row: Reservation, away: _Away) -> bool:
        if await self._register.cancel(row):
            if error := await self._delete(row, away):
                raise error
            await self._register.remove(row)
        return True  # without a row it was committed, and what it made is published

    async def _delete(self, row: Reservation, away: _Away) -> PeerAway | None:
        """Delete what a cancelled attempt made, but at peers that are `away`; returns the error of one of those."""
        # Crash here, "after-cancel": 1 nobody can commit it, 2 the artifacts and the row are there, 3 the sweeper goes on.
        left: PeerAway | None = None
        for kind, artifacts in self._artifacts.items():
            for name in await artifacts.names(f"{row.attempt}/"):
                peer = peer_of(name) if kind == HTTP else kind
                if peer not in away:
                    try:
                        await artifacts.delete(name)
                    except PeerAway as error:
                        away[error.peer] = error
                left = away.get(peer, left)
        return left
