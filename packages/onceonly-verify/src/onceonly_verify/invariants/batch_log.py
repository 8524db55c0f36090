"""What the ports of one batch saw of each of its messages: what its copies, dead letters and report must agree with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from types import TracebackType
from typing import Any

from onceonly.algorithms.deaths import KILLED, MOST_HELD
from onceonly.algorithms.intake import OTHER_BODY
from onceonly.algorithms.settlement import NO_COPY, ROTATION_SECONDS
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import (
    BudgetExceeded,
    CommitFailed,
    CommitRefused,
    HandlerAbandoned,
    HandlerFailed,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    PeerAway,
    PermanentFailure,
    RetryableError,
    UpgradeRequired,
)
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Answer, Record
from onceonly.model.remote import HTTP, Response, asks, peer_of, requested
from onceonly.model.retry import AWAY, BLAMED, RetryDecision
from onceonly.model.ring import Undecidable
from onceonly.model.third_party import called_peer
from onceonly.ports.bundle import Ports
from onceonly.ports.effects import Responses
from onceonly_verify.invariants.logged import LoggedMessage, WrongReportError
from onceonly_verify.invariants.reruns import Reruns

DEAD, RETRIED, FINISHED, RELEASED = "dead", "retried", "finished", "released"
"""How a delivery may end."""
MOST_UNITS = 10
"""More units of one batch with the same message show that there is no end to them."""


class BrokenOracleError(Exception):
    """The log of a batch itself failed. This proves nothing about the program: the log must be corrected."""


class Observed:
    def __init__(self, port: Any, note: Callable[..., Any], names: Mapping[str, str]) -> None:
        self._port = port
        self._note = note
        self._names = names

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._port, name)
        return partial(self._note, self._names[name], function) if name in self._names else function


class BatchLog:
    """Notes the calls of the delivery shell with one batch. A call that contradicts earlier ones raises WrongReportError."""

    def __init__(self, batch: Sequence[Delivery], ports: Ports, *, isolated: bool) -> None:
        """Begin with a batch; `isolated` is what the delivery shell is called with."""
        self.batch = batch
        self.messages: dict[Identity, LoggedMessage] = {}
        self.ends: dict[Any, str] = {}
        """How each delivery ended, by its receipt."""
        self.troubled = False
        """Whether a delivery was released because of an error of its unit, of its start, or of what a control message needs."""
        self._isolated = isolated
        self._endpoint = ports.endpoint
        self._handlers = ports.handlers
        self._keeps = ports.store.keeps
        self._of: dict[Any, LoggedMessage] = {}
        self._other_bodies: set[Any] = set()
        self._unreadable: dict[Any, str] = {}
        self._unit: list[LoggedMessage] = []
        self._explained = False
        self._error: Exception | None = None
        """What ended the look of a control message."""
        self._unanswered: frozenset[Identity] = frozenset()
        """The messages whose response was asked for last, and not answered."""
        self._letters: list[DeadLetter] = []
        self._new: list[LoggedMessage] = []
        self._is_isolated = False
        """Whether the last unit is isolated."""
        self._units: list[_Unit] = []
        self._reruns = Reruns(ports.store.unit_key)
        self.ports = self._observed(ports)

    def _observed(self, ports: Ports) -> Ports:
        def observed(port: Any, *names: str, **renamed: str) -> Any:
            return Observed(port, self._call, {**{name: name for name in names}, **renamed})

        handlers = observed(ports.handlers, "handle", "handle_batch")
        handlers.read, handlers.decide_retry = self._read, self._decide_retry
        controls = ports.controls
        return ports._replace(
            handlers=handlers,
            store=observed(ports.store, "begin", "forget"),
            fence=observed(ports.fence, "fence"),
            admission=observed(ports.admission, "admits", "prepare", "activate", "discard", "retire"),
            effects=observed(ports.effects, "register", "create", "discard", "clean", "call", "responses"),
            transport=observed(ports.transport, "send", "ack", "release"),
            dead_letters=observed(ports.dead_letters, "add"),
            run_markers=observed(ports.run_markers, find_dead="died", begin="start", finish="ended"),
            controls=controls and controls._replace(attempts=observed(controls.attempts, "entry", "record", "bury")),
        )

    async def _call(self, point: str, function: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        if point == "begin" and "isolated" not in options:
            point = "look"  # it runs no handler
        before, after = (getattr(self, name, None) for name in _rules(point))
        if before:
            with _OF_THE_LOG:
                before(*arguments, **options)
        try:
            answer = await function(*arguments, **options)
        except (WrongReportError, BrokenOracleError):
            raise
        except Exception as error:
            with _OF_THE_LOG:
                self._error = self._error if point in {"add", "fence", "ack", "release"} else error
                self._raised(point, error, arguments)
            raise
        if after is None:
            return answer
        with _OF_THE_LOG:
            changed = after(answer, *arguments, **options)
        return answer if changed is None else changed

    def _logged(self, identity: Identity, done: str) -> LoggedMessage:
        """Find a message of the batch. Raises WrongReportError if none has this identity."""
        logged = self.messages.get(identity)
        if logged is None:
            raise WrongReportError(f"stray: {identity.id!r} {done}, and no delivery of the batch brings it")
        return logged

    # What a handler is asked.

    def _read(self, delivery: Delivery) -> Message | Unreadable:
        read = self._handlers.read(delivery)
        if isinstance(read, Unreadable):
            self._unreadable[delivery.receipt] = read.reason
            return read
        logged = self.messages.setdefault(read.identity, LoggedMessage(read))
        if logged.message.fingerprint == read.fingerprint:
            logged.deliveries.append(delivery)
            self._of[delivery.receipt] = logged
        else:
            self._other_bodies.add(delivery.receipt)
        return read

    def _decide_retry(
        self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]
    ) -> RetryDecision:
        logged = self._logged(message.identity, "is decided on")
        with _OF_THE_LOG:
            self._check_decision(logged, failure, attempts, history)
            own = failure == logged.failure
            logged.decided, logged.failed = failure, logged.failed or (own and failure.kind not in _PUT_OFF)
        logged.decision = self._handlers.decide_retry(message, failure, attempts=attempts, history=history)
        return logged.decision

    def _check_decision(self, logged: LoggedMessage, failure: Failure, attempts: int, history: tuple[Failure, ...]) -> None:
        name, before = logged.message.id, logged.first.attempts if logged.died is None else logged.died
        if (attempts, history) != (before, logged.first.history):
            raise WrongReportError(
                f"unfair: {name!r} failed {before} times, and {attempts} with another history are counted on"
            )
        if failure.kind is FailureKind.UNKNOWN and not failure.reason.startswith(BLAMED):
            raise WrongReportError(f"unfair: {name!r} did not run alone, and a decision is made about its unit")
        if failure not in (logged.failure, *self._others(logged)):
            raise WrongReportError(f"unfair: {name!r} did not fail like this: {failure.kind}, {failure.reason}")

    def _others(self, logged: LoggedMessage) -> list[Failure]:
        """List what may be counted or put off and is no failure of a handler or a commit."""
        found = [KILLED] if logged.died is not None else []
        if logged.wait:
            found.append(Failure(kind=FailureKind.LATER, reason="another attempt may be in progress", delay=logged.wait))
        if logged.undecidable is Undecidable.SLOT_NOT_READY:
            found.append(Failure(kind=FailureKind.LATER, reason=logged.undecidable.value, delay=ROTATION_SECONDS))
        if logged.away is not None:
            found.append(Failure(kind=FailureKind.LOCKED, reason=f"{AWAY}: {logged.away}"))
        if logged.refused and logged.record:
            sent = sorted({f"{each.message.type} to {each.to or 'its subscribers'}" for each in logged.record.effects})
            reason = f"handled, but the broker rejected its messages: {', '.join(sent[:3])}"
            found.append(Failure(kind=FailureKind.REFUSED, reason=reason))
        return found

    # A unit, call by call.

    def _before_register(self, messages: Sequence[Message]) -> None:
        self._unit = [self._logged(message.identity, "is in a unit") for message in messages]
        self._reruns.begins(self._unit)
        for logged in self._unit:
            logged.end_unit()
            logged.units += 1
            if logged.units > MOST_UNITS:
                raise WrongReportError(f"endless: {logged.message.id!r} is in more than {MOST_UNITS} units of one batch")

    def _before_begin(self, messages: Sequence[Message], *, isolated: bool) -> None:
        names = ", ".join(message.id for message in messages)
        if [message.identity for message in messages] != [logged.message.identity for logged in self._unit]:
            raise WrongReportError(
                f"wrong unit: one begins with {names}, and the attempts registered last are not those of {names}"
            )
        first = [logged for logged in self._unit if logged.units == 1]
        wanted = len(messages) > 1 and (self._isolated or any(each.attempts for each in self._users()))
        if first and isolated != wanted:
            raise WrongReportError(f"wrong unit: the first one with {names} is {'not ' if wanted else ''}isolated")
        if wanted and not isolated:
            raise WrongReportError(
                f"wrong unit: a handler is likely to fail in this batch, and one with {names} is not isolated"
            )
        if [logged for logged in self._unit if logged.must_be_isolated] and not isolated:
            raise WrongReportError(f"wrong unit: one of {names} ended the last unit, and this one is not isolated")
        for logged in self._unit:
            logged.must_be_isolated = False
        self._is_isolated = isolated
        if [logged for logged in self._unit if logged.blamed] and len(messages) > 1:
            raise WrongReportError(f"wrong unit: a message that may ruin units is in one of several: {names}")

    def _users(self) -> list[Delivery]:
        return [
            each for each in self.batch if each.receipt in self._of or each.receipt in {*self._other_bodies, *self._unreadable}
        ]

    def _before_look(self, messages: Sequence[Message]) -> None:
        self._reruns.looks(messages)

    def _after_look(self, unit: Any, messages: Sequence[Message]) -> Any:
        (message,) = messages
        return self._opened(unit, partial(self._call, "probe") if message in unit.found.new else self._refuse_commit_of_known)

    def _opened(self, unit: Any, note: Callable[..., Any]) -> "_Unit":
        opened = _Unit(unit, note)
        self._units.append(opened)
        return opened

    async def _refuse_commit_of_known(self, *_: Any) -> None:
        (logged,) = self._unit
        raise WrongReportError(f"unfair: {logged.message.id!r} is known, and its unit is committed without its handler")

    def _after_begin(self, unit: Any, _: Sequence[Message], **_options: bool) -> Any:
        found = unit.found
        for message in found.done:
            self._logged(message.identity, "is found done").is_known = True
        for record in found.pending:
            logged = self._logged(record.identity, "is found pending")
            logged.is_known, logged.record = True, record
        for each in found.undecidable:
            self._logged(each.message.identity, "is found undecidable").undecidable = each.reason
        self._new = [self._logged(message.identity, "is found new") for message in found.new]
        for logged in self._unit:
            logged.unit_key = unit.key
        return self._opened(unit, partial(self._call, "commit"))

    def _after_admits(self, answer: Any, messages: Sequence[Message]) -> None:
        for message in messages:
            self._logged(message.identity, "is asked about").is_admitted = message.identity in answer.messages
        for each in answer.undecidable:
            logged = self._logged(each.message.identity, "is found undecidable")
            if not logged.is_known:
                logged.undecidable = each.reason

    def _after_responses(self, answer: Responses, messages: Sequence[Message]) -> Responses:
        """Check that responses are asked for before the unit, and watch the use of each error."""
        for message in messages:
            if self._logged(message.identity, "is asked for") not in self._unit or not asks(message):
                raise WrongReportError(f"stray: a response is asked for that {message.id!r} does not need")
        self._unanswered = frozenset(identity for identity, found in answer.items() if isinstance(found, PeerAway))
        return _WatchedResponses(answer, self._use_response_error)

    def _use_response_error(self, identity: Identity, error: OnceOnlyError) -> None:
        """Note that a message ends with the error that another service has left it."""
        logged = self._logged(identity, "is handled")
        if logged not in self._new or not logged.is_admitted:
            raise WrongReportError(f"unfair: {identity.id!r} fails for its response, and is not to be handled")
        with _OF_THE_LOG:
            self._raised("response", error, (logged.message,))

    def _before_handle(self, message: Message, *_: Any) -> None:
        logged = self._logged(message.identity, "is handled")
        if logged not in self._new or not logged.is_admitted:
            why = "not admitted" if logged in self._new else "not new in its unit"
            raise WrongReportError(f"duplicate: the handler of {message.id!r} runs, and the message is {why}")
        if (logged.alone or logged.suspect) and not logged.is_started:
            raise WrongReportError(f"wrong unit: {message.id!r} must run alone, and no start of it is recorded")
        if logged.has_run_alone:
            raise WrongReportError(f"wrong unit: {message.id!r} runs again after it ran alone")
        logged.has_run_alone = len(self._unit) == 1 and not self._is_isolated

    def _before_handle_batch(self, messages: Sequence[Message], *_: Any) -> None:
        for message in messages:
            self._before_handle(message)
            logged = self._logged(message.identity, "is handled")
            if logged.failure:
                raise WrongReportError(f"unfair: {message.id!r} has failed in this unit, and runs in it again")

    def _after_commit(self, _: None, records: Sequence[Record]) -> None:
        for record in records:
            logged = self._logged(record.identity, "is committed")
            logged.committed, logged.record = True, record
            self._reruns.committed()

    def _after_probe(self, _: None, _records: Sequence[Record]) -> None:
        for logged in self._unit:
            cause = logged.cause
            self._reruns.blamed(logged.message)
            logged.failure = Failure(kind=FailureKind.UNKNOWN, reason=f"{BLAMED}: {type(cause).__name__}: {cause}")

    def _after_call(self, answers: Mapping[Identity, Answer], records: Sequence[Record]) -> None:
        for record in records:
            answer, logged = answers.get(record.identity), self.messages.get(record.identity)
            if answer and logged:
                logged.refused = answer is Answer.REFUSED
                called = dict.fromkeys(call.url.rpartition("/")[0] for call in record.requests)
                logged.away = ", ".join(called) if answer is Answer.AWAY else None

    def _translated_error(self, point: str, error: Exception, arguments: Sequence[Any]) -> Exception:
        """Return an error as the algorithm must see it: a peer that does not answer is away."""
        if point == "response" and _is_away(error):
            peer = _peer(arguments[0])
            for each in self._unit:
                if _peer(each.message) == peer and (peer or each.message.identity in self._unanswered):
                    each.away = peer
            return PeerAway(str(error), peer)
        if point == "create" and isinstance(error, PeerAway):
            for record in arguments[0]:
                if any(each.kind == HTTP and peer_of(each.name) == error.peer for each in record.artifacts):
                    self._logged(record.identity, "is created").away = error.peer
        return error

    def _raised(self, point: str, error: Exception, arguments: Sequence[Any]) -> None:
        """Note how a call failed that belongs to a unit, or to a start."""
        logged = self.messages.get(arguments[0].identity) if point in {"handle", "response"} else None
        if point == "handle_batch" and isinstance(error, BudgetExceeded):
            logged = self.messages[arguments[0][0].identity]
        error = self._translated_error(point, error, arguments)
        if point in {"died", "start"}:
            identities = arguments[0] if point == "died" else arguments[:1]
            for identity in identities:
                self._logged(identity, "is asked about").cause = _NoAnswer()
        elif isinstance(error, BudgetExceeded) and logged:
            for each in self._new[self._new.index(logged) :]:
                each.postponed = each.is_admitted and each.failure is None
        elif isinstance(error, HandlerFailed) and (logged or (point == "handle_batch" and self._is_isolated)):
            self._handler_failed(error, logged)
        elif point in _OF_UNITS or (point == "send" and not self._are_copies(arguments[0])):
            self._ended(error)
            if point == "commit" and len(arguments[0]) == 1:
                logged = self._logged(arguments[0][0].identity, "is committed")
            self._blame(error, logged)
            self._isolate(error, logged)
            self._reruns.ended(self._unit, error, logged, isolated=self._is_isolated)

    def _handler_failed(self, error: HandlerFailed, logged: LoggedMessage | None) -> None:
        """Note a failure of one message's handler, or of a batch's in an isolated unit, which runs again in parts."""
        if logged is None:
            failures = {self._logged(identity, "has failed"): each for identity, each in error.by_message.items()}
        else:
            failures = {logged: error.failure}
        for failed, failure in failures.items():
            failed.failure = failure
            self._isolate(error, failed)
            if self._is_isolated:
                self._reruns.failed(failed, HandlerFailed(failure))
            else:
                self._reruns.ended(self._unit, error, failed, isolated=self._is_isolated)

    def _ended(self, error: Exception | None) -> None:
        for each in self._unit:
            each.cause, each.postponed, each.committed, each.failure = error, False, False, None

    def _isolate(self, error: Exception, logged: LoggedMessage | None) -> None:
        """Note which messages run again in an isolated unit, when this error has ended the last one."""
        if len(self._unit) == 1 or (self._is_isolated and isinstance(error, HandlerFailed | LockTimeout)):
            return
        everyone = isinstance(error, HandlerFailed | CommitRefused) or (isinstance(error, LockTimeout) and logged)
        ruined = (
            logged
            and isinstance(error, RetryableError)
            and not isinstance(error, HandlerAbandoned | UpgradeRequired | PeerAway)
        )
        for each in self._unit if everyone or ruined else ():
            each.must_be_isolated = bool(everyone) or each is not logged

    def _blame(self, error: Exception, logged: LoggedMessage | None) -> None:
        """Note the failure that an error is for a message, unless its unit runs again."""
        if isinstance(error, CommitRefused) and len(self._unit) == 1:
            kind = FailureKind.REJECTED if isinstance(error, PermanentFailure) else FailureKind.COMMIT
            self._unit[0].failure = Failure(kind=kind, reason=str(error))
        elif isinstance(error, HandlerAbandoned) and logged:
            logged.failure = error.failure
        elif isinstance(error, LockTimeout) and logged:
            logged.failure = Failure(kind=FailureKind.LOCKED, reason=f"{type(error).__name__}: {error}")

    # Run markers, and deaths.

    def _before_died(self, identities: Sequence[Identity]) -> None:
        for each in self.messages.values():
            if each.suspect and each.message.identity not in identities:
                raise WrongReportError(
                    f"unfair: {each.message.id!r} came from a process that may have died, and no death is looked up"
                )

    def _after_died(self, answer: Any, identities: Sequence[Identity]) -> None:
        self._explained = answer.explained
        for identity in identities:
            died, logged = answer.counted.get(identity, -1), self._logged(identity, "is asked about")
            logged.died = died if died >= logged.first.attempts else None

    def _before_start(self, identity: Identity, attempts: int) -> None:
        logged = self._logged(identity, "starts")
        if attempts != logged.first.attempts:
            raise WrongReportError(f"unfair: {identity.id!r} failed {logged.first.attempts} times, and starts with {attempts}")
        left = [d for each in self.messages.values() if not each.alone for d in each.deliveries if d.receipt not in self.ends]
        if logged.alone and left:
            raise WrongReportError(f"wrong unit: {identity.id!r} runs alone, and {left[0].body.decode()!r} is still held")
        if not logged.alone and not logged.copy_refused:
            raise WrongReportError(f"wrong unit: {identity.id!r} runs alone, and nothing asks for that")
        logged.is_started = True
        self._reruns.restart()

    def _after_start(self, answer: Any, identity: Identity, _: int) -> None:
        logged = self._logged(identity, "starts")
        logged.died, logged.wait = answer.died, answer.wait
        logged.is_started = answer.died is None and not answer.wait

    def _after_ended(self, _: None, identity: Identity) -> None:
        self._logged(identity, "has ended").is_started = False
        self._reruns.judged()
        self._reruns.restart()

    # Copies, dead letters, and settlements.

    def _are_copies(self, sends: Sequence[Send]) -> bool:
        return any(send.message.identity in self.messages for send in sends)

    def _before_send(self, sends: Sequence[Send]) -> None:
        self._reruns.judged()
        for send in sends:
            logged = self.messages.get(send.message.identity)
            if logged is None:
                continue
            self._is_over(logged)
            wanted = self._copy(logged)
            if send != wanted:
                raise WrongReportError(f"miscopied: the copy of {send.message.id!r} is {send}, and not {wanted}")
            logged.cause = None

    def _copy(self, logged: LoggedMessage) -> Send:
        """Write the copy that is to be sent now."""
        decision, first = logged.decision, logged.first
        alone, held = logged.alone or logged.died is not None, logged.held
        if decision is None:
            if [each for each in self.messages.values() if each.suspect and each.died is not None and not each.decision]:
                raise WrongReportError("unfair: a death is not counted yet, and others are sent again")
            is_held = self._explained and held < MOST_HELD
            alone, held = alone or not is_held, held + is_held
            decision = RetryDecision(give_up=not logged.suspect, due=0, attempts=first.attempts, history=first.history)
        if decision.give_up:
            raise WrongReportError(f"miscopied: {logged.message.id!r} is sent again, and no decision says so")
        return Send(
            message=logged.message,
            to=self._endpoint,
            due=decision.due,
            attempts=decision.attempts,
            history=decision.history,
            alone=alone,
            held=held,
        )

    def _after_send(self, answers: Sequence[Answer], sends: Sequence[Send]) -> None:
        for send, answer in zip(sends, answers, strict=True):
            if send.message.identity in self.messages:
                logged = self.messages[send.message.identity]
                logged.copied, logged.copy_refused = answer is Answer.TAKEN, answer is Answer.REFUSED
            elif answer is Answer.REFUSED:
                for logged in self._unit:
                    logged.refused = logged.refused or (logged.record is not None and send in logged.record.effects)

    def _before_fence(self, _unit: str, identity: Identity, *_: Any) -> None:
        logged = self._logged(identity, "is fenced")
        logged.cause, logged.has_fence = None, True  # it is given up now

    def _after_fence(self, answer: Any, _unit: str, identity: Identity, *_: Any) -> None:
        logged = self._logged(identity, "is fenced")
        logged.fenced = answer is not None

    def _before_add(self, letter: DeadLetter) -> None:
        logged = self.messages.get(letter.message.identity) if letter.message else None
        if letter.message is None:
            self._error = None  # it is the reason of the letter
        if logged is None or letter.reason == OTHER_BODY or letter.reason in self._unreadable.values():
            return
        self._is_over(logged)
        logged.cause, decision, first = None, logged.decision, logged.first
        wanted = logged.undecidable.value if logged.undecidable else ""
        attempts, history = first.attempts, first.history
        if decision and logged.decided and not logged.is_past_retention:
            attempts, history = decision.attempts, decision.history
            last = f"{history[-1].reason}. " if history else ""
            wanted = logged.decided.reason if decision.give_up else f"{last}{NO_COPY}"
            refusal = self._others(logged)[-1:] if logged.refused else []
            wanted = refusal[0].reason if refusal else wanted
        name = logged.message.id
        if (letter.reason, letter.attempts, letter.history) != (wanted, attempts, history):
            raise WrongReportError(f"wrong letter: {name!r} is given up because {letter.reason!r}, and not {wanted!r}")
        if wanted.endswith(NO_COPY) and not logged.copy_refused:
            raise WrongReportError(f"wrong letter: {name!r} is given up without a copy, and no copy of it was refused")
        if not (letter.finish_only or logged.has_fence):
            raise WrongReportError(f"both: {name!r} is given up, and no fence keeps an earlier attempt from its commit")
        if logged.fenced and not letter.finish_only:
            raise WrongReportError(f"both: {name!r} is given up, and its fence has found that it was handled")
        if letter.finish_only != logged.refused:
            raise WrongReportError(f"wrong letter: that of {name!r} is {'not ' if logged.refused else ''}finish only")

    def _after_add(self, _: None, letter: DeadLetter) -> None:
        self._letters.append(letter)

    def _before_ack(self, deliveries: Sequence[Delivery]) -> None:
        self._reruns.judged()
        for delivery in deliveries:
            logged = self._of.get(delivery.receipt)
            self._is_over(logged)
            end = RETRIED if logged and logged.copied else FINISHED
            if self.ends.get(delivery.receipt) == RELEASED:
                raise WrongReportError(f"lost: {delivery.body.decode()!r} is released, and acked after that")
            end = DEAD if any(_is_of(each, delivery, logged) for each in self._letters) else end
            if end == FINISHED and logged:
                self._is_finished(logged)
            self.ends[delivery.receipt] = end

    def _is_finished(self, logged: LoggedMessage) -> None:
        """Check that nothing is left of a message that is acked as handled."""
        if logged.cleaned is None:
            raise WrongReportError(f"leak: {logged.message.id!r} is acked, and what other attempts at it made is not deleted")
        if self._keeps(logged.cleaned) and not logged.is_forgotten:
            raise WrongReportError(f"leak: {logged.message.id!r} is acked, and its record is not forgotten")

    def _before_release(self, deliveries: Sequence[Delivery]) -> None:
        self._reruns.judged()
        for delivery in deliveries:
            logged = self._of.get(delivery.receipt)
            self._is_over(logged)
            if logged:
                self._reruns.left(logged)
            self.ends[delivery.receipt] = RELEASED
            is_control = not (logged or delivery.receipt in self._other_bodies or delivery.receipt in self._unreadable)
            self.troubled |= self._error is not None if is_control else logged is not None and logged.cause is not None

    def _after_ack(self, *_: Any) -> None:
        self._error = None

    _after_release = _after_ack

    def _before_clean(self, records: Sequence[Record]) -> None:
        for record in records:
            logged = self.messages.get(record.identity)
            if logged and record.unit != logged.unit_key:
                raise WrongReportError(f"leak: {record.identity.id!r} is cleaned up in {record.unit!r}, and not in its unit")

    def _after_clean(self, _: None, records: Sequence[Record]) -> None:
        for record in records:  # one that a control message leads to belongs to no delivery of the batch
            if record.identity in self.messages:
                self.messages[record.identity].cleaned = record

    def _after_forget(self, _: None, records: Sequence[Record]) -> None:
        for record in records:
            if record.identity in self.messages:
                self.messages[record.identity].is_forgotten = True

    def _is_over(self, logged: LoggedMessage | None) -> None:
        if logged and logged.is_started:
            raise WrongReportError(f"wrong unit: {logged.message.id!r} is settled, and the record of its start is still there")

    def of(self, delivery: Delivery) -> LoggedMessage | None:
        """Return the message that a delivery brings; None for a control message, another body, and what cannot be read."""
        return self._of.get(delivery.receipt)

    @property
    def left_open(self) -> str:
        """Name the messages of a unit that was neither committed nor abandoned; empty if there is none."""
        return next((unit.names for unit in self._units if not unit.is_over), "")

    def is_other_body(self, delivery: Delivery) -> bool:
        """Return whether an earlier delivery of the batch has the same identity and another body."""
        return delivery.receipt in self._other_bodies


@cache
def _rules(point: str) -> tuple[str, str]:
    """Name what `BatchLog` does before a call and after it."""
    return f"_before_{point}", f"_after_{point}"


class _WatchedResponses(dict[Identity, Response | OnceOnlyError]):
    """Responses whose errors are noted when they are used."""

    def __init__(self, responses: Responses, note: Callable[[Identity, OnceOnlyError], None]) -> None:
        super().__init__(responses)
        self._note = note

    def get(self, identity: Identity, _default: Any = None) -> Any:
        """Return what was found for a message."""
        found = super().get(identity)
        if isinstance(found, OnceOnlyError):
            self._note(identity, found)
        return found


class _OfTheLog:
    """Tells an error of the log from one that a program lets escape. Raises WrongReportError, BrokenOracleError."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, WrongReportError | BrokenOracleError):
            raise BrokenOracleError(f"the log of a batch raised {error!r}") from error


_OF_THE_LOG = _OfTheLog()


class _NoAnswer(Exception):
    """It is not known whether a message may be run."""


class _Unit:
    def __init__(self, unit: Any, note: Callable[..., Any]) -> None:
        self.key, self.found, self.resources = unit.key, unit.found, unit.resources
        self.names = ", ".join(message.id for message in unit.found.new) or "known messages"
        self.is_over = False
        """Whether it was committed or abandoned."""
        self._unit, self._note = unit, note

    def abandon(self) -> None:
        self.is_over = True
        self._unit.abandon()

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit it, unless it was given up."""
        if self.is_over:
            raise WrongReportError(f"torn: a unit with {self.names} is committed, and it was abandoned before")
        await self._note(self._unit.commit, records)
        self.is_over = True


_OF_UNITS = frozenset(
    {
        "register",
        "begin",
        "admits",
        "handle",
        "handle_batch",
        "response",
        "responses",
        "prepare",
        "create",
        "commit",
        "activate",
        "call",
        "discard",
    }
)
"""The calls whose failure ends a unit."""
_PUT_OFF = frozenset({FailureKind.LOCKED, FailureKind.UNKNOWN})


def _is_away(error: Exception) -> bool:
    """Return whether a peer did not answer. An answer that is refused is one."""
    return isinstance(error, CommitFailed | OutcomeUnknown) and not isinstance(error, CommitRefused)


def _peer(message: Message) -> str:
    """Return the peer that has the response which a message follows up."""
    return called_peer(message) or requested(message).rpartition("/")[0]


def _is_of(letter: DeadLetter, delivery: Delivery, logged: LoggedMessage | None) -> bool:
    if (letter.headers, letter.body) == (delivery.headers, delivery.body):
        return True
    return bool(
        logged and letter.message and letter.message.identity == logged.message.identity and letter.body == delivery.body
    )
