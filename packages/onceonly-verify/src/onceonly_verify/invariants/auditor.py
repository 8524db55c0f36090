"""What must hold: in every state, and when everything is at rest. The promise, as a program."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, NamedTuple, Protocol

from onceonly.adapters.memory.store import StoreWorld
from onceonly.algorithms.intake import OTHER_BODY
from onceonly.algorithms.settlement import NO_COPY
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import FailureKind
from onceonly.model.token import Token
from onceonly_verify.board import BOARD
from onceonly_verify.invariants.batch_log import BrokenOracleError
from onceonly_verify.invariants.copies import left_marked, wrongly_suspected
from onceonly_verify.invariants.logged import WrongReportError
from onceonly_verify.invariants.resources import (
    UNDECIDABLE,
    QuiescentWorld,
    dead_tokens,
    evicted_records,
    left_open,
    left_over,
    missing_things,
    refused_early,
    unanswered,
    uncompensated,
    wrong_answers,
    wrongly_called,
    wrongly_executed,
)
from onceonly_verify.invariants.retention import (
    committed_rows,
    handled_after_retention,
    hasty_retries,
    hasty_sweeps,
    hasty_tombstones,
    late_commits,
    lost_answers,
    retention_over,
)
from onceonly_verify.names import BY, effect_text, fingerprint_of, name_of
from onceonly_verify.parts import Parts
from onceonly_verify.step_limit import EndlessStep
from onceonly_verify.workload import FLAWS, HOPELESS, HOST_DEAD, Behaviour, Flaw, Workload, unreadable
from onceonly_verify.workload_ports import STARTS, Views
from onceonly_verify.world import BROKER, LEDGER, LETTERS, STORE, Numbering, State


class AuditedWorld(Protocol):
    """What is looked at: the parts of a world, how its stores look, and what its workers let escape."""

    parts: Parts
    views: Views

    def escaped(self, state: State) -> BaseException | None:
        """Return what a worker's program let escape, if one did."""

    def name_of(self, identity: Identity) -> str:
        """Return the name that steps use for a message."""


class SentMessages(NamedTuple):
    """All messages that were ever sent, as far as the broker shows it: what a delivery changes is left out.

    `sunk` and `waiting` are (id, body, queue): what reached a sink, and what waits for an endpoint. `tokens` reached a sink.
    """

    sunk: AbstractSet[tuple[str, str, str]]
    tokens: AbstractSet[Token]
    waiting: AbstractSet[tuple[str, str, str]]


class Auditor:
    """Looks at states of one check. Each verdict depends on a few parts only and is remembered for them."""

    def __init__(self, environment: AuditedWorld, workload: Workload, patience: int) -> None:
        """Judge histories of this workload; after `patience` deliveries of one copy, or copies, nothing is settling."""
        self._parts = environment.parts
        self._environment = environment
        self._workload = workload
        self._patience = patience
        left = self._parts.ledger(self._parts.first[LEDGER]).left
        self._overtaken = bool(left.sweeps and (left.crashes or left.failures))
        works = all(behaviour is Behaviour.WORKS for _, behaviour in workload.behaviours)
        disturbances = (left.crashes, left.failures, left.sweeps, left.outage, left.silences, left.rollbacks, left.lapses)
        self._is_undisturbed = works and not any(disturbances)
        self._is_given_back = workload.patient and not (left.crashes or left.expiries) and left.failures == 1
        """Whether a failed acknowledgement or release makes no message a suspect: nothing else goes wrong after it."""
        self._mismatched = workload.mismatched()
        self._hopeless = frozenset(each.name for each in workload.arrivals if each.flaw in HOPELESS)
        self._deaths = BOARD.name if workload.board else STARTS
        """The part of the world that knows which messages' processes died."""
        self._known: dict[tuple[int, ...], str] = {}
        self._viewed: dict[int, Mapping[str, StoreWorld]] = {}
        self._targets = {endpoint: frozenset(workload.targets(endpoint)) for endpoint in workload.endpoints}
        self._receiving = frozenset().union(*self._targets.values()) & set(workload.endpoints)
        """The endpoints to which others send."""
        self._decided = cache(workload.decided)
        self._sent: Numbering[SentMessages] = Numbering()
        self._sent_by_broker: dict[int, int] = {}

    def violation(self, state: State) -> str:
        """Return what is wrong with this state; empty when nothing is."""
        return (
            self._first_violation((0, state[STORE]), self._whole)
            or self._first_violation((1, state[STORE], self._sent_in(state[BROKER])), self._wrong_sends)
            or self._first_violation(
                (2, self._parts.at(state, self._parts.places[self._deaths]), state[BROKER], state[LEDGER]), self._settling
            )
            or self._first_violation(
                (6, self._parts.at(state, self._parts.places[self._deaths]), state[BROKER]), self._suspected
            )
            or self._first_violation((3, state[STORE], state[LETTERS], state[LEDGER]), self._fair)
            or self._escape(state)
        )

    def violation_at_rest(self, state: State) -> str:
        """Return what is wrong with this state, in which nothing is left to do."""
        return self._first_violation((4, state[STORE], state[BROKER], state[LETTERS]), self._finished) or self._first_violation(
            (5, state[STORE]), self._unmarked
        )

    def _first_violation(self, key: tuple[int, ...], rule: Any) -> str:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = next(rule(*key[1:]), "")
        return found

    def _escape(self, state: State) -> str:
        error = self._environment.escaped(state)
        if isinstance(error, BrokenOracleError):
            raise error
        if isinstance(error, EndlessStep):
            return f"endless: {error}"
        if isinstance(error, WrongReportError):
            return str(error)
        return f"escape: the delivery shell let {type(error).__name__} escape: {error}" if error else ""

    def _stores(self, number: int) -> Mapping[str, StoreWorld]:
        found = self._viewed.get(number)
        if found is None:
            found = self._viewed[number] = self._environment.views.stores(self._parts.stores(number))
        return found

    def _sent_in(self, broker: int) -> int:
        """Return the number of what a broker shows as sent."""
        found = self._sent_by_broker.get(broker)
        if found is None:
            part = self._parts.known[BROKER].values[broker]
            waiting = (entry for entry in part.broker.entries if entry.queue in self._receiving)
            sent = frozenset((_id(entry), entry.body.decode(), entry.queue) for entry in waiting)
            sunk = frozenset(each for each in part.sunk if each[2] != HOST_DEAD) if self._workload.hosted_most else part.sunk
            found = self._sent_by_broker[broker] = self._sent.number(SentMessages(sunk, part.tokens, sent))
        return found

    def _whole(self, store: int) -> Iterator[str]:
        """Look at what is committed: of each message one attempt's row and its claim, or nothing."""
        for endpoint, world in self._stores(store).items():
            rows = committed_rows(self._parts.stores(store), endpoint, world)
            for name, times in Counter(name_of(text) for text, _ in rows).items():
                if times > 1 and not handled_after_retention(self._workload, self._parts.stores(store), endpoint, name):
                    yield f"duplicate: {name!r} was handled {times} times{self._endpoint_text(endpoint)}"
                if name in self._hopeless:
                    yield f"stray: {name!r} was handled{self._endpoint_text(endpoint)}, and no handler may get it"
                if name.count(".") != self._workload.depth(endpoint):
                    yield f"stray: {name!r} was handled{self._endpoint_text(endpoint)}, where nobody sent it"
            over = retention_over(self._workload, self._parts.stores(store), endpoint)
            yield from self._torn(endpoint, world, over)
            if self._workload.application:
                yield from self._half(
                    endpoint, world, self._environment.views.application_rows(self._parts.stores(store), endpoint)
                )
        yield from lost_answers(self._workload, self._parts.stores(store), self._stores(store))
        yield from late_commits(self._workload, self._parts.stores(store))
        yield from hasty_retries(self._workload, self._parts.stores(store))
        yield from hasty_sweeps(self._workload, self._parts.stores(store))
        yield from hasty_tombstones(self._workload, self._parts.stores(store), self._stores(store))
        yield from wrong_answers(self._workload, self._parts.stores(store), self._stores(store))
        yield from missing_things(self._workload, self._parts.stores(store), self._stores(store))
        yield from wrongly_executed(self._workload, self._parts.stores(store), self._stores(store))
        yield from wrongly_called(self._workload, self._parts.stores(store))
        yield from evicted_records(self._workload, self._parts.stores(store))

    def _torn(self, endpoint: str, world: Any, over: AbstractSet[tuple[str, str]]) -> Iterator[str]:
        """Compare rows with claims: a handler that failed leaves no row, and takes none of the others of its unit."""
        claimed = {body for _, body in world.claims}
        written = {fingerprint_of(text) for text, _ in world.notes}
        for text, mark in world.notes:
            if fingerprint_of(text) in claimed or text in self._workload.unclaimed or (text, mark) in over:
                continue
            if self._workload.timing:
                yield f"forgotten: {name_of(text)!r} is unknown{self._endpoint_text(endpoint)}, and its retention is not over"
            else:
                yield f"torn: attempt {mark} of {name_of(text)!r} left a row{self._endpoint_text(endpoint)}, but no claim"
        for identity, body in world.claims:
            if body not in written:
                name = self._environment.name_of(identity)
                yield f"torn: {name!r} is claimed{self._endpoint_text(endpoint)}, but no row was committed"

    def _half(self, endpoint: str, world: Any, rows: tuple[tuple[str, str], ...]) -> Iterator[str]:
        """Compare the rows of all entities with those of the application's document: they are written together."""
        missing, strange = Counter(world.notes) - Counter(rows), Counter(rows) - Counter(world.notes)
        for text, mark in missing:
            yield f"half: attempt {mark} of {name_of(text)!r} left no row in the document{self._endpoint_text(endpoint)}"
        for text, mark in strange:
            yield f"half: attempt {mark} of {name_of(text)!r} left a row in the document{self._endpoint_text(endpoint)} only"

    def _wrong_sends(self, store: int, number: int) -> Iterator[str]:
        """Look at what was sent: of each message what its one committed attempt sends, and under one id."""
        every = self._sent.values[number]
        stores = self._stores(store)
        for endpoint, world in stores.items():
            rows = _attempts(committed_rows(self._parts.stores(store), endpoint, world))
            sent, handled = every.sunk, set[tuple[str, str]]()
            if targets := self._targets[endpoint] & self._receiving:
                sent = {each for each in every.waiting if each[2] in targets}
                handled = {(text, target) for target in targets for text, _ in stores[target].notes}
            yield from self._ghosts(endpoint, {(text, queue) for _, text, queue in sent} | handled, rows)
            yield from _fresh_ids(sent)
        yield from dead_tokens(self._workload, self._parts.stores(store), every.tokens)
        yield from unanswered(self._workload, self._parts.stores(store), every.sunk)

    def _ghosts(self, endpoint: str, sent: AbstractSet[tuple[str, str]], rows: Mapping[str, AbstractSet[str]]) -> Iterator[str]:
        for text, queue in sorted(sent):
            name, _, mark = text.partition(BY)
            parent, _, index = name.rpartition(".")
            if mark not in rows.get(parent, ()):
                yield f"ghost: a message of attempt {mark} of {parent!r} was sent, and that attempt was never committed"
                continue
            decided = self._decided(endpoint, mark)[int(index) :][:1]
            if queue not in (self._workload.subscribers if decided == ("",) else decided):
                yield f"ghost: {name!r} was sent to {queue}, and the committed attempt {mark} did not decide that"

    def _settling(self, died: int, broker: int, ledger: int) -> Iterator[str]:
        part = self._parts.bare(self._parts.places[self._deaths], died)
        world, deaths = self._parts.bare(BROKER, broker), dict(part.deaths)
        known = self._parts.known[LEDGER].values[ledger]
        if known.left_behind:
            yield "left behind: a worker ended its batch and neither acked nor released a delivery"
        if known.wrong:
            yield known.wrong
        if world.last > self._patience:
            yield f"endless: {world.last} copies were made, and there is no end to it"
        for entry in world.entries:
            if entry.times > self._patience:
                yield f"endless: one copy was delivered {entry.times} times, and there is no end to it"
            if self._is_given_back and known.unsettled and entry.suspect:
                yield f"apart: {entry.body.decode()!r} comes again as a suspect, and no process died"
            if entry.times > 1 and name_of(entry.body.decode()) in self._workload.prompt:
                yield f"held up: {entry.body.decode()!r} was released because of another message"
            count = int(dict(entry.headers).get("ce-onceonlyattempts", "0"))
            if not count:
                continue
            died = deaths.get(claim_key(entry.queue, _identity(entry)), 0)
            name = name_of(entry.body.decode())
            own = known.excuses_of(name) + died + self._workload.failed_before(name)
            if count > own:
                yield f"unfair: {entry.body.decode()!r} counts {count} failures, but it had {own} of its own"

    def _suspected(self, died: int, broker: int) -> Iterator[str]:
        if self._workload.board:
            board = self._parts.bare(self._parts.places[self._deaths], died)
            for entry in self._parts.bare(BROKER, broker).entries:
                yield from wrongly_suspected(self._workload, board, entry, _identity(entry))

    def _unmarked(self, store: int) -> Iterator[str]:
        yield from left_marked(self._parts.stores(store))

    def _fair(self, store: int, letters: int, ledger: int) -> Iterator[str]:
        if kept := self._parts.known[LETTERS].values[letters].letters:
            yield from self._fairly_given_up(kept, store, ledger)

    def _fairly_given_up(self, kept: tuple[DeadLetter, ...], store: int, ledger: int) -> Iterator[str]:
        handled = {endpoint: {text for text, _ in world.notes} for endpoint, world in self._stores(store).items()}
        known = self._parts.known[LEDGER].values[ledger]
        deaths = dict(self._parts.stores(store)[self._deaths].deaths)
        for letter in _of_messages(kept, self._workload):
            text = letter.body.decode()
            name, excuses = name_of(text), known.excuses_of(name_of(text)) + self._workload.failed_before(name_of(text))
            lost = deaths.get(claim_key(letter.endpoint, letter.message.identity), 0) if letter.message else 0
            if letter.reason in UNDECIDABLE:  # it may have been handled: a person decides
                yield from refused_early(self._workload, self._parts.stores(store), letter, excuses + lost)
                continue
            if letter.reason in FLAWS or name in self._hopeless:
                yield from self._unread(letter, name)
                continue
            if letter.finish_only and text not in handled[letter.endpoint]:
                yield f"wrong letter: {name!r} is kept as handled, but no attempt was committed"
            may_be_given_up = self._workload.may_be_given_up or self._workload.lost
            blameless = self._workload.behaviour(name) is Behaviour.WORKS and not may_be_given_up
            refused = letter.reason.endswith(NO_COPY)
            uncounted = refused and lost > 0  # a death of its own, and no copy can carry the count
            if blameless and letter.reason != OTHER_BODY and not (letter.finish_only or uncounted):
                yield f"unfair: {name!r} was given up, but its handler never fails"
            # A message whose copy is refused is given up at its first failure: another delivery of it may still succeed.
            if text in handled[letter.endpoint] and not (letter.finish_only or refused or self._workload.may_be_both):
                yield f"both: {name!r} was handled, and is a dead letter"
            if letter.reason == OTHER_BODY and name not in self._mismatched:
                yield f"unfair: {name!r} was taken for a copy with another body, but no other message was sent under its id"
            if letter.reason != OTHER_BODY and not 0 < letter.attempts <= excuses + lost:
                yield f"unfair: {name!r} was given up after {letter.attempts} failures, but had {excuses + lost} of its own"
            if (killed := sum(failure.kind is FailureKind.KILLED for failure in letter.history)) > lost:
                yield f"unfair: {name!r} was given up for {killed} deaths, but {lost} processes died while its handler ran"

    def _unread(self, letter: DeadLetter, name: str) -> Iterator[str]:
        """Look at a message that no handler may get: it is given up at once, for its own flaw."""
        flaws = {arrival.name: arrival.flaw for arrival in self._workload.arrivals}
        flaw = flaws.get(name)
        if flaw is None or not (flaw.value in letter.reason if flaw in HOPELESS else flaw.value == letter.reason):
            yield f"wrong letter: {name!r} was given up because {letter.reason}"
        if letter.attempts != int(flaw in HOPELESS) + self._workload.failed_before(name) or letter.finish_only:
            yield f"wrong letter: {name!r} was never handled, and its dead letter says that it was"
        if (letter.message is None) != (flaw is Flaw.UNNAMED):
            yield f"wrong letter: the dead letter of {name!r} has {'no' if letter.message is None else 'an'} identity"

    def _finished(self, store: int, broker: int, letters: int) -> Iterator[str]:
        """Follow every message from endpoint to endpoint."""
        arrived = {arrival.name for arrival in self._workload.arrivals}
        expected = {self._workload.endpoints[0]: arrived | unreadable(self._workload)}
        silent = {client.name for client in self._workload.clients if not client.effects}
        kept = self._parts.known[LETTERS].values[letters].letters
        part = self._parts.known[BROKER].values[broker]
        for endpoint, world in self._stores(store).items():
            mine = [letter for letter in kept if letter.endpoint == endpoint]
            committed = committed_rows(self._parts.stores(store), endpoint, world)
            rows = dict(committed)
            given_up = {letter.body.decode() for letter in mine}
            given_up |= {text for _, text, queue in part.sunk if queue == HOST_DEAD}
            stored = {stored.record.identity.id for stored in world.records}
            waiting = {letter.body.decode(): letter.message.id for letter in mine if letter.finish_only}
            for text in sorted(expected.get(endpoint, set()) - set(rows) - given_up):
                yield f"lost: {text!r} is neither handled nor a dead letter{self._endpoint_text(endpoint)}"
            if world.open:
                yield "leak: a unit is still open"
            pending = sorted(stored - set(waiting.values()))
            yield from (f"leak: the record of {id_!r} is still there" for id_ in pending)
            for text, mark in committed:
                targets = self._decided(endpoint, mark) if waiting.get(text) not in stored and text not in silent else ()
                for index, target in enumerate(targets):
                    for queue in (target,) if target else self._workload.subscribers:
                        expected.setdefault(queue, set()).add(effect_text(name_of(text), index, mark))
        if any(run.until for run in self._parts.stores(store)[STARTS].runs):
            yield "leak: a run is recorded as one in progress, and its process lives"
        for queue in sorted(expected.keys() - set(self._workload.endpoints)):
            for text in sorted(expected[queue] - {text for _, text, sink in part.sunk if sink == queue}):
                yield f"phantom: {text!r} was committed as sent, but never arrived"
        tokens = {Token(each.message.token, each.endpoint) for each in kept if each.message and not self._is_over(each, store)}
        yield from self._left(QuiescentWorld(self._parts.stores(store), self._stores(store), part, tokens))

    def _left(self, left: QuiescentWorld) -> Iterator[str]:
        yield from left_over(self._workload, left, overtaken=self._overtaken)
        if self._is_undisturbed:
            yield from left_open(self._workload, left)
            yield from uncompensated(self._workload, left)

    def _is_over(self, letter: DeadLetter, store: int) -> bool:
        """Return whether a message was handled before it was given up, and a relay has finished it since."""
        records = {stored.record.identity for stored in self._stores(store)[letter.endpoint].records}
        return letter.finish_only and letter.message is not None and letter.message.identity not in records

    def _endpoint_text(self, endpoint: str) -> str:
        return f" at {endpoint}" if len(self._workload.endpoints) > 1 else ""


def _of_messages(letters: tuple[DeadLetter, ...], workload: Workload) -> list[DeadLetter]:
    """Leave out control messages that cannot be decoded: they become dead letters, and have no identity."""
    return [letter for letter in letters if letter.message or letter.body.decode() not in unreadable(workload)]


def _identity(entry: Any) -> Identity:
    headers = dict(entry.headers)
    return Identity(headers["ce-source"], headers.get("ce-id", ""))


def _id(entry: Any) -> str:
    return str(dict(entry.headers)["ce-id"])


def _attempts(notes: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the committed attempts at each message: one, or more where its retention was over in between."""
    found: dict[str, set[str]] = {}
    for text, mark in notes:
        found.setdefault(name_of(text), set()).add(mark)
    return found


def _fresh_ids(sent: AbstractSet[tuple[str, str, str]]) -> Iterator[str]:
    ids: dict[str, str] = {}
    for id_, text, _ in sorted(sent):
        if ids.setdefault(name_of(text), id_) != id_:
            yield f"fresh id: {name_of(text)!r} was sent under two ids: receivers see two messages"
