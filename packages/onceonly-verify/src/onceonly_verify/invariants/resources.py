"""What must hold of what is kept beside the stores: tokens, keys of a dedup store, artifacts and their register rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from onceonly.adapters.memory.store import StoreWorld
from onceonly.documents.register import LISTED
from onceonly.formats.documents import decode_entity
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.ring import Undecidable
from onceonly.model.token import Token
from onceonly_verify.clock import BUCKETING, RETENTION, ring_in, rings_in
from onceonly_verify.invariants.retention import committed_rows, promised_in_rings
from onceonly_verify.names import effect_text, name_of
from onceonly_verify.time_steps import STEP, clock_of_world
from onceonly_verify.workload import SWEPT_TOKENS, WITH_TOKENS, DeduplicationMode, Workload
from onceonly_verify.workload_ports import ANSWERS, ARTIFACTS, REMOTE, THIRD_PARTY, TOKENS, AnswersWorld, is_swept
from onceonly_verify.world import BrokerPart

UNDECIDABLE = frozenset(reason.value for reason in Undecidable)

Worlds = Mapping[str, Any]
"""Parts of a world by their places' names."""


def missing_things(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, for what a committed attempt made and somebody unmade."""
    if workload.artifacts:
        there = {artifact.data.decode() for artifact in worlds[ARTIFACTS].artifacts}
        for text in sorted(_published(workload, stores) - there):
            yield f"unmade: {text!r} is gone, and the attempt that made it was committed"


def wrong_answers(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, at clients' keys and at what clients were told: the answer to what they asked, once committed."""
    if not workload.clients and not workload.asked:
        return
    store = stores[workload.endpoints[0]]
    rows = committed_rows(worlds, workload.endpoints[0], store)
    for asked, answer in sorted(worlds[ANSWERS].responses):
        if (asked, answer) not in rows:
            yield f"wrong answer: request {asked!r} was answered {answer!r}, and that attempt was never committed"
    yield from _wrong_errors(workload, worlds[ANSWERS], store, {mark for _, mark in rows})
    attempts = workload.attempts
    for attempt, answer in sorted(worlds[ANSWERS].told):
        client = attempts[attempt]
        mine = sorted(mark for text, mark in rows if name_of(text) == client.name)
        if answer not in mine:
            yield f"wrong answer: attempt {attempt} was told {answer!r}, but {', '.join(mine) or 'nothing'} was committed"
        elif attempts[answer].request != client.request:
            yield f"mixed up: attempt {attempt} was given the answer to another request"


def _wrong_errors(workload: Workload, answers: AnswersWorld, store: StoreWorld, committed: AbstractSet[str]) -> Iterator[str]:
    """Look at keys, and at the errors that clients were told."""
    attempts = workload.attempts if workload.clients else {}
    for key, kept in store.keys if workload.clients else ():
        if kept.attempt not in committed:
            yield f"blocked: key {key!r} is taken by attempt {kept.attempt}, which was never committed"
    for attempt in sorted(answers.failed & committed):
        yield f"wrong answer: attempt {attempt} was told that nothing had happened, and was committed"
    for attempt in sorted(answers.unsent):
        yield f"unsent: attempt {attempt} was told that its outcome is unknown, and its commit was never sent"
    for attempt in sorted(answers.reused) if workload.timing is None else ():  # keys expire where time passes
        asked = attempts[attempt]
        if all(attempts[kept.attempt].request == asked.request for key, kept in store.keys if key == asked.key):
            yield f"wrong answer: attempt {attempt} was told that its key was used for another request, and it was not"


def wrongly_executed(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, at what the other service has executed: of each committed attempt one request, and no other."""
    if workload.requests:
        asked = _asked(workload, stores)
        for body, times in Counter(worlds[REMOTE].executed).items():
            if times > 1:
                yield f"duplicate: {name_of(body.decode())!r} was executed {times} times by the other service"
            if body.decode() not in asked:
                yield f"ghost: {body.decode()!r} was executed by the other service, and its attempt was never committed"


def wrongly_called(workload: Workload, worlds: Worlds) -> Iterator[str]:
    """Look, in every state, at what a service that is not ours has executed: each call once at most."""
    if workload.calls:
        for body, times in Counter(worlds[THIRD_PARTY].executed).items():
            if times > 1:
                yield f"duplicate: the call of {body.decode()!r} was executed {times} times"


def evicted_records(workload: Workload, worlds: Worlds) -> Iterator[str]:
    """Look, in every state, for records of a slice that its bucket has forgotten: their messages would be refused."""
    rings = rings_in(worlds)
    if rings is not None:
        for each in rings.records:
            if rings.rings[each.place.ring].held(each.place.start) != each.place.start:
                yield f"evicted: the slice of {each.record.identity.id!r} is forgotten, and its effects are not dispatched"
    elif workload.deduplication is DeduplicationMode.RING:
        ring = ring_in(worlds)
        for waiting in ring.records:
            if waiting.slice is not None and ring.buckets[BUCKETING.bucket(waiting.slice)].start != waiting.slice:
                yield f"evicted: the slice of {waiting.record.identity.id!r} is forgotten, and its effects are not dispatched"


def refused_early(workload: Workload, worlds: Worlds, letter: DeadLetter, excuses: int) -> Iterator[str]:
    """Look at a message that was refused for its instant: it must be behind the horizon, and that counts as no failure."""
    instant, name = letter.message.instant if letter.message else 0, letter.body.decode()
    timing, rings = workload.timing, rings_in(worlds)
    if rings is not None and workload.changes is not None:
        age, kept = rings.now - instant, promised_in_rings(workload.changes, rings, instant)
    elif workload.deduplication is DeduplicationMode.RING or timing is None:
        age, kept = ring_in(worlds).now - instant, RETENTION
    else:  # by the clock of the run, which may be ahead
        age, kept = clock_of_world(worlds).now + timing.difference * STEP - instant, timing.shortest
    if letter.reason != Undecidable.TOO_OLD.value or not instant or age <= kept:
        yield f"refused: {name!r} is not behind the horizon, and was given up as {letter.reason!r}"
    if letter.attempts > excuses:
        yield f"unfair: {name!r} was refused after {letter.attempts} failures, but had {excuses} of its own"


def dead_tokens(workload: Workload, worlds: Worlds, arrived: AbstractSet[Token]) -> Iterator[str]:
    """Look, in every state, for messages that came to the sink with a token that is not live: it would drop them."""
    if workload.deduplication in WITH_TOKENS:
        live = _live(workload, worlds)
        for token in sorted(arrived - live):
            yield f"dead token: a message was sent with token {token.id!r}, which is not live: its receiver drops it"


def unanswered(workload: Workload, worlds: Worlds, sunk: AbstractSet[tuple[str, str, str]]) -> Iterator[str]:
    """Look, in every state, for messages that came to the sink before the other service executed what they follow up."""
    if workload.requests and len(workload.endpoints) == 1:
        executed = {body.decode() for body in worlds[REMOTE].executed}
        for text in sorted(text for _, text, _ in sunk):
            if int(name_of(text).rpartition(".")[2]) < workload.requests and text not in executed:
                yield f"unanswered: {text!r} was sent before the other service executed what it follows up"


class QuiescentWorld(NamedTuple):
    """A quiescent world: its parts, how its stores look, its broker, and the tokens that dead letters keep for a retry."""

    worlds: Worlds
    stores: Mapping[str, StoreWorld]
    broker: BrokerPart
    given_up: AbstractSet[Token]


def left_over(workload: Workload, left: QuiescentWorld, *, overtaken: bool) -> Iterator[str]:
    """Look, at rest, for what nobody will ever ask for or remove. What a sweeper removes does not rest where there is one.

    A sweeper that overtakes an attempt may remove its row before it makes artifacts: then they are left when its process dies.
    """
    worlds, stores, part, given_up = left
    if workload.deduplication in WITH_TOKENS:
        waiting = {token for store in stores.values() for each in store.records for token in each.record.issued}
        for token in sorted(_live(workload, worlds) - part.tokens - given_up - waiting):
            yield f"leak: token {token.id!r} of {token.endpoint} is live, and its message is gone"
    yield from _left_elsewhere(workload, worlds, stores)
    if workload.makes:
        yield from _unlisted(worlds)
    if workload.artifacts and not overtaken:
        listed = _listed(worlds)
        published = _published(workload, stores)
        for artifact in sorted(worlds[ARTIFACTS].artifacts, key=lambda artifact: artifact.name):
            if artifact.data.decode() not in published and artifact.name.partition("/")[0] not in listed:
                yield f"leak: {artifact.name!r} is there, its attempt was never committed, and no row leads to it"


def left_open(workload: Workload, left: QuiescentWorld) -> Iterator[str]:
    """Look, at rest, for open register rows of messages that were handled: whoever finishes a message cancels them.

    Only a call that lands late could open a row after that, and only a handler that fails could leave one.
    """
    if workload.makes and not workload.lost:
        opened = [row.attempt for row in _rows(left.worlds) if not row.cancelled]
        for each in _written(left.worlds):
            if not each.key.startswith(LISTED):
                rows = decode_entity(each.key, each.body).register
                opened += [attempt for attempt, row in rows.items() if not row.cancelled]
        yield from (f"leak: the register row of attempt {attempt} is open" for attempt in sorted(opened))


def uncompensated(workload: Workload, left: QuiescentWorld) -> Iterator[str]:
    """Look, at rest, for what attempts left behind that lost, although nothing failed: only a sweeper would remove it.

    A cancelled row may stay, and so may a listing: neither permits anything, and an attempt that wins leaves them to the
    sweeper. Where nobody else is at work, there is none.
    """
    worlds = left.worlds
    if workload.deduplication in SWEPT_TOKENS:
        for each in sorted(worlds[TOKENS].prepared, key=repr):
            if is_swept(each):
                yield f"leak: token {each.token.id!r} of {each.token.endpoint} is prepared, and its attempt has lost"
    if workload.artifacts:
        lost = {each.data.decode() for each in worlds[ARTIFACTS].artifacts} - _published(workload, left.stores)
        yield from (f"leak: artifact {text!r} is left, and its attempt has lost" for text in sorted(lost))
    if workload.alone:
        yield from (f"leak: the register row of attempt {row.attempt} is left" for row in _rows(worlds))


def _unlisted(worlds: Worlds) -> Iterator[str]:
    """Look for register rows that no sweeper finds."""
    listed = _listed(worlds)
    for each in _written(worlds):
        if not each.key.startswith(LISTED):
            for attempt in sorted(decode_entity(each.key, each.body).register.keys() - listed):
                yield f"leak: the register row of attempt {attempt} is in {each.key!r}, and no sweeper finds it"


def _left_elsewhere(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look for requests that were never executed, or that nobody deletes; tombstones go when their time is over.

    A sweeper that overtakes an attempt leaves a tombstone, so nothing that this makes later is left.
    """
    if workload.requests:
        there = worlds[REMOTE]
        for text in sorted(_asked(workload, stores) - {body.decode() for body in there.executed}):
            yield f"phantom: {text!r} was committed as asked of the other service, which never executed it"
    if workload.followed or workload.requests:
        there, listed = worlds[REMOTE], _listed(worlds)
        is_followed_up = (workload.followed and not workload.requests) or len(
            workload.endpoints
        ) > 1  # otherwise what was executed stays
        left = sorted(
            {url for url, body in (*there.requests, *there.responses) if is_followed_up or body not in there.executed}
        )
        for url in (url for url in left if url.partition("/")[0] not in listed):
            yield f"leak: request {url!r} is still there, and no row leads to it"
    if workload.calls:
        executed = {body.decode() for body in worlds[THIRD_PARTY].executed}
        handled = {name_of(text) for text, _ in stores[workload.endpoints[0]].notes}
        yield from (f"phantom: {name!r} was handled, and its call was never executed" for name in sorted(handled - executed))
    if workload.asked:
        requests = worlds[f"requests of {workload.endpoints[0]}"].requests
        responses = stores[workload.endpoints[0]].keys
        yield from (f"leak: request {key!r} is still there" for key, _ in sorted(requests, key=repr))
        yield from (f"leak: the response to {key!r} is still there" for key, _ in responses)


def _asked(workload: Workload, stores: Mapping[str, StoreWorld]) -> set[str]:
    """Name what committed attempts have asked of the other service."""
    rows = stores[workload.endpoints[0]].notes
    return {effect_text(name_of(text), index, mark) for text, mark in rows for index in range(workload.requests)}


def _live(workload: Workload, worlds: Worlds) -> frozenset[Token]:
    database = next(iter(worlds.values()))
    live: frozenset[Token] = worlds[TOKENS].live if workload.deduplication in SWEPT_TOKENS else database.tokens
    return live


def _published(workload: Workload, stores: Mapping[str, StoreWorld]) -> set[str]:
    """Name what committed attempts made; transactions make nothing."""
    rows = [row for row in stores[workload.endpoints[0]].notes if row[0] not in workload.unclaimed]
    return {effect_text(name_of(text), index, mark) for text, mark in rows for index in range(workload.artifacts)}


def _listed(worlds: Worlds) -> set[str]:
    """Return the attempts that a sweeper finds."""
    listed = {each.key.rpartition("/")[2] for each in _written(worlds) if each.key.startswith(LISTED)}
    return listed | {row.attempt for row in _rows(worlds)}


def _rows(worlds: Worlds) -> list[Any]:
    """Return the register rows in stores with claims."""
    return [row for world in worlds.values() for row in getattr(world, "rows", ())]


def _written(worlds: Worlds) -> list[Any]:
    return [each for world in worlds.values() for each in getattr(world, "written", ()) if each.body is not None]
