"""Broken versions of the relay, and of the store as the relay sees it."""

from onceonly_verify.mutants.adapters import TWO_COMMITS
from onceonly_verify.mutants.known_bad import BOTH, RELAYED, RELAYED_TWO, Mutant, relay, store

_DISPATCH = "    answers = await dispatch(records, ports)\n"
_FINISHED = "    finished = tuple(record for record in records if answers[record.identity] is Answer.TAKEN)\n"
_FORGET = "        await ports.store.forget(finished)\n"
_RELAY = "async def relay("
_COMMIT = "    async def commit(self, token: Hashable, changes: Changes) -> None:\n"
_BEFORE_ABANDON = "def abandon(world: StoreWorld, token: Hashable) -> Step:\n"
_UNIT = "    token: Hashable\n    claims: tuple[Claim, ...]\n"
_OPENED = "    return replace(world, open=(*world.open, unit)), found\n"
_OLD = "for stored in sorted(world.records, key=lambda stored: stored.at) if stored.at < older_than]\n"
_KEPT = (
    "    return replace(world, records=tuple(stored for stored in world.records if stored.record.identity not in gone)), None\n"
)

_BY_IDENTITY = "stored.record.identity: stored.record for stored in"
_FOUND = "    return world, tuple(known[identity] for"
_UNCOMMITTED = "(*world.records, *(flushed for unit in world.open for flushed in unit.flushed))"
_FLUSHED = (
    store(_UNIT, _UNIT + "    flushed: tuple = ()\n"),
    store(
        '        await self._perform("commit", commit, (token',
        "        records = tuple(Stored(record, 0) for record in changes.records)\n"
        '        await self._perform("flush", _flush, (token, records))\n'
        '        await self._perform("commit", commit, (token',
    ),
    store(
        _BEFORE_ABANDON,
        "def _flush(world, token, records):\n"
        "    units = tuple(replace(unit, flushed=records) if unit.token == token else unit for unit in world.open)\n"
        "    return replace(world, open=units), None\n\n\n" + _BEFORE_ABANDON,
    ),
)
"""Records reach the store in a call of their own before the commit, as rows that a transaction writes do."""

RELAY: tuple[Mutant, ...] = (
    Mutant(
        "relay: forgotten before dispatch",
        (RELAYED,),
        (relay(_DISPATCH, "    await ports.store.forget(records)\n" + _DISPATCH),),
    ),
    Mutant(
        "relay: refused record forgotten",
        (RELAYED,),
        (relay(_FINISHED, _FINISHED.replace("is Answer.TAKEN", "is not Answer.UNKNOWN")),),
    ),
    Mutant(
        "relay: record forgotten before the send is answered",
        (RELAYED,),
        (relay(_FINISHED, _FINISHED.replace("is Answer.TAKEN", "is not Answer.REFUSED")),),
    ),
    Mutant(
        "relay: send failure swallowed",
        (RELAYED,),
        (
            relay(
                "from onceonly.model.record import",
                "from onceonly.model.errors import TryAgain\nfrom onceonly.model.record import",
            ),
            relay(
                _DISPATCH,
                "    try:\n    " + _DISPATCH + "    except TryAgain:\n"
                "        answers = {record.identity: Answer.TAKEN for record in records}\n",
            ),
        ),
    ),
    Mutant(
        "relay: all forgotten when one was taken",
        (RELAYED_TWO,),
        (relay(_FORGET, _FORGET.replace("(finished)", "(records)")),),
    ),
    Mutant(
        "relay: fresh ids each time",
        (BOTH,),
        (
            relay(_DISPATCH, "    records = [_renamed(record) for record in records]\n" + _DISPATCH),
            relay(
                _RELAY,
                "def _renamed(record):\n"
                "    from msgspec.structs import replace\n"
                "    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]\n"
                "    return Record(record.identity, tuple(fresh))\n\n\n" + _RELAY,
            ),
        ),
    ),
    Mutant(
        "relay: told records sent before their commit",
        (RELAYED,),
        (
            *_FLUSHED,
            store(
                f"    known = {{{_BY_IDENTITY} world.records}}\n{_FOUND}",
                f"    known = {{{_BY_IDENTITY} {_UNCOMMITTED}}}\n{_FOUND}",
            ),
        ),
    ),
    Mutant(
        "relay: uncommitted records seen when looking",
        (RELAYED_TWO,),
        (*_FLUSHED, store(_OLD, _OLD.replace("sorted(world.records,", f"sorted({_UNCOMMITTED},"))),
    ),
    Mutant(
        "relay: records of handlers passed over",
        (BOTH,),
        (store(_OLD, _OLD.replace(" if stored", " if (stored.record.identity not in dict(world.claims)) and stored")),),
    ),
    Mutant("relay: record in a second transaction", (RELAYED_TWO,), TWO_COMMITS),
    Mutant(
        "relay by watermark",
        (RELAYED_TWO,),
        (
            store(_UNIT, _UNIT + "    number: int = 0\n"),
            store(
                "    open: tuple[OpenUnit, ...] = ()\n",
                "    open: tuple[OpenUnit, ...] = ()\n    begun: int = 0\n    seen: int = 0\n",
            ),
            store(
                _OPENED,
                "    unit = replace(unit, number=world.begun + 1)\n"
                "    return replace(world, open=(*world.open, unit), begun=unit.number), found\n",
            ),
            store("tuple(Stored(record, now) for", "tuple(Stored(record, unit.number) for"),
            store(
                "world.notes + changes.notes, closed.open)",
                "world.notes + changes.notes, closed.open, world.begun, world.seen)",
            ),
            store(_OLD, _OLD.replace("stored.at < older_than", "stored.at > world.seen")),
            store(
                _KEPT,
                "    seen = max([world.seen, *(stored.at for stored in world.records if stored.record.identity in gone)])\n"
                + _KEPT.replace("replace(world, ", "replace(world, seen=seen, "),
            ),
        ),
    ),
    Mutant(
        "relay: claim deleted with the record",
        (BOTH,),
        (
            relay(_FORGET, _FORGET.replace("(finished)", "(finished, claims=True)")),
            store(
                "    async def forget(self, records: Sequence[Record]) -> None:\n",
                "    async def forget(self, records: Sequence[Record], *, claims: bool = False) -> None:\n",
            ),
            store(
                'Operation("forget", self.place, forget, (',
                'Operation("forget", self.place, _forget_all if claims else forget, (',
            ),
            store(
                _BEFORE_ABANDON,
                "def _forget_all(world, identities):\n"
                "    claims = frozenset(claim for claim in world.claims if claim[0] not in identities)\n"
                "    return replace(forget(world, identities)[0], claims=claims), None\n\n\n" + _BEFORE_ABANDON,
            ),
        ),
    ),
)
