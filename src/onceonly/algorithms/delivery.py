"""The delivery shell: from deliveries to settled deliveries. Every one is acked, released, retried or dead-lettered.

    apart     tell control messages from users': those are looked at, `algorithms/control`, and never counted
    sort      group the copies of one message; set aside what cannot be read or has to wait; single out suspects
    run       one unit of work (`outbox.process`); on a message's own failure once more, isolated; then by halves
    settle    finish what is done; copy, then ack, what is retried; store, then ack, what is given up; release the rest

Only a message's own failure is counted: its handler's, its process's death, or a commit refused in a unit of one. Conflicts,
Unknown and failing ports release the delivery uncounted, so an outage dead-letters nothing.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from onceonly.algorithms.control import Looked, apart, control_of, look
from onceonly.algorithms.intake import OTHER_BODY, Item, Letter, letter_for, sort
from onceonly.algorithms.outbox import Processed, drop, finish, process
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitRefused, Conflict, HandlerFailed, LeftToNewer, Outrun, TryAgain, Unusable
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Answer, Decision, Record
from onceonly.model.remote import Response
from onceonly.model.retry import Verdict
from onceonly.model.ring import Bar
from onceonly.ports.bundle import Ports
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.ports.transactions import Controls

KILLED = Failure(kind=FailureKind.KILLED, reason="the process that held it ended before it was settled")
RECYCLING = 5.0
"""Seconds after which a message is looked at again whose slot has not been recycled yet."""


class Report(Struct, frozen=True, kw_only=True):
    """How a batch ended, in deliveries; for telemetry and for the pace of the worker, never for correctness."""

    handled: int = 0
    known: int = 0
    idle: int = 0
    """How many messages of those known had nothing left to do here, however many copies of each there were."""
    dropped: int = 0
    """How many messages of those known were not admitted and not found here, however many copies of each there were."""
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    contended: int = 0
    outrun: int = 0
    """How many of those that were contended: a smaller batch would not have helped."""
    unsure: int = 0
    unrecycled: int = 0
    """How many of those that were retried wait for their slot: it should be recycled now."""
    newer: int = 0
    """How many of those that were unsure: only processes of a newer version can read what they need."""
    trouble: tuple[str, ...] = ()
    """What the ports said where a unit did not come about."""

    def __add__(self, other: "Report") -> "Report":
        """Add two reports up."""
        if _NOTHING in (self, other):
            return self if other == _NOTHING else other
        return Report(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


_NOTHING = Report()


class Ran(Struct, frozen=True, kw_only=True):
    """What became of some items: unit by unit, and those whose unit as a whole did not come about."""

    processed: tuple[Processed, ...] = ()
    contended: tuple[Item, ...] = ()
    outrun: tuple[Item, ...] = ()
    unsure: tuple[Item, ...] = ()
    newer: tuple[Item, ...] = ()
    trouble: tuple[str, ...] = ()

    def __add__(self, other: "Ran") -> "Ran":
        """Join two results."""
        return Ran(
            processed=self.processed + other.processed,
            contended=self.contended + other.contended,
            outrun=self.outrun + other.outrun,
            unsure=self.unsure + other.unsure,
            newer=self.newer + other.newer,
            trouble=self.trouble + other.trouble,
        )


Work = Callable[[], Awaitable[Report]]
Works = Sequence[Work]


async def one_after_another(works: Works) -> Report:
    """Do one work after another."""
    report = Report()
    for work in works:
        report += await work()
    return report


async def deliver(
    deliveries: Sequence[Delivery], ports: Ports, do: Callable[[Works], Awaitable[Report]] = one_after_another
) -> Report:
    """Take a batch through. Returns when every delivery is settled or given back.

    Its units have nothing to do with each other: `do` may do them side by side.
    """
    report, controls = Report(), ports.controls
    if controls:
        looks, deliveries = apart(deliveries)
        report += await do([partial(_look_at, delivery, controls, ports) for delivery in looks])
    intake = sort(deliveries, ports)
    await _release(intake.back, ports)
    report += await give_up(intake.letters, ports) + Report(postponed=len(intake.back))
    report += await count_starts(intake.suspects, ports)
    # from here on nothing else is held: a message that must run alone is so
    return report + await do([partial(_take_through, unit, ports) for unit in intake.units])


async def _look_at(delivery: Delivery, controls: Controls, ports: Ports) -> Report:
    try:
        looked = await look(control_of(delivery), controls, ports)
    except (ValueError, CommitRefused) as error:  # it is none, or what it leads to was not written by us
        return await give_up([letter_for(delivery, None, f"a control message that cannot be followed: {error}", ports)], ports)
    except (TryAgain, Conflict) as error:
        await _release([delivery], ports)
        return Report(unsure=1, trouble=(_words(error),))
    if looked is Looked.UNSURE:
        await _release([delivery], ports)
        return Report(unsure=1)
    await _ack([delivery], ports)
    return Report(known=1)


async def _take_through(unit: Sequence[Item], ports: Ports) -> Report:
    return await settle(unit, await run(unit, ports), ports)


async def count_starts(suspects: Sequence[Item], ports: Ports) -> Report:
    """Let each of these start again alone; of one that was alone already, count the start, durably, before it happens.

    A process that dies with a whole batch says nothing about any one message of it. One that was started too often goes
    through its unit without its handler: it may be committed and owe its effects.
    """
    judged = [(item, _judge(item, KILLED, ports) if item.killed else _uncounted(item)) for item in suspects]
    report = await retry([(item, verdict) for item, verdict in judged if not verdict.give_up], ports, alone=True)
    for item, verdict in judged:
        if verdict.give_up:
            hopeless = ports._replace(handlers=GivenUp(ports.handlers, verdict))
            report += await settle([item], await run((item,), hopeless), hopeless)
    return report


async def run(items: Sequence[Item], ports: Ports, *, isolated: bool = False) -> Ran:
    """Run items as one unit, and find those to blame when it fails: any number of bad handlers costs one extra pass."""
    try:
        return Ran(processed=(await process([item.message for item in items], ports, isolated=isolated),))
    except (HandlerFailed, CommitRefused) as error:
        if len(items) == 1:
            return Ran(processed=(Processed(failed=((items[0].message.identity, _failure(error)),)),))
    except Conflict as error:
        outrun = tuple(items) if isinstance(error, Outrun) else ()
        return Ran(contended=tuple(items), outrun=outrun, trouble=(_words(error),))
    except TryAgain as error:
        newer = tuple(items) if isinstance(error, LeftToNewer) else ()
        return Ran(unsure=tuple(items), newer=newer, trouble=(_words(error),))
    if not isolated:
        return await run(items, ports, isolated=True)
    half = len(items) // 2  # what only COMMIT shows has no name on it
    return await run(items[:half], ports, isolated=True) + await run(items[half:], ports, isolated=True)


async def settle(items: Sequence[Item], ran: Ran, ports: Ports) -> Report:
    """Settle every delivery of these items."""
    of = {item.message.identity: item for item in items}
    parts = ran.processed
    finished = [record for part in parts for record in part.finished]
    report = await _finish(finished, of, ran, ports)
    report += await _drop([record for part in parts for record in part.dropped], of, ports)
    failed = [(of[identity], failure) for part in parts for identity, failure in part.failed]
    refused = [(of[r.identity], _refusal(r)) for part in parts for r, answer in part.kept if answer is Answer.REFUSED]
    report += await _retry_or_give_up([*failed, *refused], ports)
    clashing = [of[identity] for part in parts for identity in part.clashing]
    report += await give_up([_clash(item, d, ports) for item in clashing for d in item.deliveries], ports)
    report += await _bar([(of[barred.message.identity], barred.bar) for part in parts for barred in part.barred], ports)
    postponed = [of[identity] for part in parts for identity in part.postponed]
    unsure = [of[record.identity] for part in parts for record, answer in part.kept if answer is Answer.UNKNOWN]
    await release([*postponed, *unsure, *ran.contended, *ran.unsure], ports)
    return report + Report(
        postponed=_count(postponed),
        contended=_count(ran.contended),
        outrun=_count(ran.outrun),
        unsure=_count([*unsure, *ran.unsure]),
        newer=_count(ran.newer),
        trouble=ran.trouble,
    )


async def retry(judged: Sequence[tuple[Item, Verdict]], ports: Ports, *, alone: bool = False) -> Report:
    """Send a copy that carries the count, then ack the original; a copy that was not taken leaves the original."""
    if not judged:
        return Report()
    try:
        answers = await ports.transport.send([_copy(item, verdict, ports, alone=alone) for item, verdict in judged])
    except TryAgain:
        answers = tuple(Answer.UNKNOWN for _ in judged)
    taken = [item for (item, _), answer in zip(judged, answers, strict=True) if answer is Answer.TAKEN]
    # Crash here, "after-retry-copy": 1 copy taken, 2 original not acked, 3 both come, 4 one claim: handled once.
    await _ack([delivery for item in taken for delivery in item.deliveries], ports)
    left = [item for (item, _), answer in zip(judged, answers, strict=True) if answer is not Answer.TAKEN]
    await release(left, ports)
    return Report(retried=_count(taken), unsure=_count(left))


async def give_up(letters: Sequence[Letter], ports: Ports) -> Report:
    """Store dead letters, then ack; what could not be stored is released."""
    report = Report()
    for letter in letters:
        try:
            await ports.dead_letters.add(letter.letter)
        except (TryAgain, Conflict):
            await _release(letter.deliveries, ports)
            report += Report(unsure=len(letter.deliveries))
        else:
            # Crash here, "after-dead-letter": 1 stored, 2 not acked, 3 it comes again, 4 the letter is stored once.
            await _ack(letter.deliveries, ports)
            report += Report(dead=len(letter.deliveries))
    return report


async def release(items: Sequence[Item], ports: Ports) -> None:
    """Give items back uncounted."""
    await _release([delivery for item in items for delivery in item.deliveries], ports)


class GivenUp:
    """Handlers of a message whose process died too often: its handler never runs again, and its verdict is final."""

    def __init__(self, handlers: Handlers, verdict: Verdict) -> None:
        """Keep the verdict."""
        self._handlers = handlers
        self._verdict = verdict

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read as ever."""
        return self._handlers.read(delivery)

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Fail at once."""
        raise HandlerFailed(KILLED)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Give the verdict."""
        return self._verdict


async def _finish(finished: Sequence[Record], of: Mapping[Identity, Item], ran: Ran, ports: Ports) -> Report:
    if not finished:
        return Report()
    items = [of[record.identity] for record in finished]
    try:
        await finish(finished, [delivery for item in items for delivery in item.deliveries], ports)
    except (TryAgain, Conflict):
        await release(items, ports)
        return Report(unsure=_count(items))
    fresh = frozenset(identity for part in ran.processed for identity in part.handled)
    handled = sum(record.identity in fresh for record in finished)
    idle = sum(not (record.owes or record.minted or record.identity in fresh) for record in finished)
    return Report(handled=handled, known=_count(items) - handled, idle=idle)


async def _drop(dropped: Sequence[Record], of: Mapping[Identity, Item], ports: Ports) -> Report:
    if not dropped:
        return Report()
    items = [of[record.identity] for record in dropped]
    try:
        await drop(dropped, [delivery for item in items for delivery in item.deliveries], ports)
    except (TryAgain, Conflict):
        await release(items, ports)
        return Report(unsure=_count(items))
    return Report(known=_count(items), dropped=len(items))


async def _retry_or_give_up(failed: Sequence[tuple[Item, Failure]], ports: Ports) -> Report:
    judged = [(item, failure, _judge(item, failure, ports)) for item, failure in failed]
    report = await retry([(item, verdict) for item, _, verdict in judged if not verdict.give_up], ports)
    return report + await give_up(
        [_final(item, failure, verdict, ports) for item, failure, verdict in judged if verdict.give_up], ports
    )


async def _bar(barred: Sequence[tuple[Item, Bar]], ports: Ports) -> Report:
    """Have those wait whose slot can be recycled; the others are for a person, who may know whether they were handled."""
    waiting = [item for item, bar in barred if bar is Bar.UNRECYCLED]
    later = Failure(kind=FailureKind.LATER, reason=Bar.UNRECYCLED.value, delay=RECYCLING)
    report = await _retry_or_give_up([(item, later) for item in waiting], ports)
    finals = [(item, Failure(kind=FailureKind.REJECTED, reason=bar.value)) for item, bar in barred if bar is not Bar.UNRECYCLED]
    report += await give_up([_final(item, failure, _uncounted(item), ports) for item, failure in finals], ports)
    return report + Report(unrecycled=_count(waiting))


def _judge(item: Item, failure: Failure, ports: Ports) -> Verdict:
    return ports.handlers.verdict(item.message, failure, attempts=item.attempts, history=item.history)


def _uncounted(item: Item) -> Verdict:
    return Verdict(give_up=False, due=0, attempts=item.attempts, history=item.history)


def _refusal(record: Record) -> Failure:
    sends = sorted({f"{effect.message.type} to {effect.to or 'its subscribers'}" for effect in record.effects})
    return Failure(kind=FailureKind.REFUSED, reason=f"handled, but the broker refused what it sends: {', '.join(sends[:3])}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _failure(error: HandlerFailed | CommitRefused) -> Failure:
    if isinstance(error, HandlerFailed):
        return error.failure
    kind = FailureKind.REJECTED if isinstance(error, Unusable) else FailureKind.COMMIT  # hopeless: no retry mends it
    return Failure(kind=kind, reason=str(error))


def _copy(item: Item, verdict: Verdict, ports: Ports, *, alone: bool) -> Send:
    return Send(
        message=item.message,
        to=ports.endpoint,
        due=verdict.due,
        attempts=verdict.attempts,
        history=verdict.history,
        alone=alone or item.alone,
    )


def _final(item: Item, failure: Failure, verdict: Verdict, ports: Ports) -> Letter:
    first = item.deliveries[0]
    letter = DeadLetter(
        endpoint=ports.endpoint,
        reason=failure.reason,
        headers=first.headers,
        body=first.body,
        message=item.message,
        attempts=verdict.attempts,
        history=verdict.history,
        finish_only=failure.kind is FailureKind.REFUSED,
    )
    return Letter(letter, item.deliveries)


def _clash(item: Item, delivery: Delivery, ports: Ports) -> Letter:
    return letter_for(delivery, item.message, OTHER_BODY, ports)


async def _ack(deliveries: Sequence[Delivery], ports: Ports) -> None:
    with suppress(TryAgain):  # it comes again, and everything it asks for is done already
        await ports.transport.ack(deliveries)


async def _release(deliveries: Sequence[Delivery], ports: Ports) -> None:
    if deliveries:
        with suppress(TryAgain):  # its lease ends by itself
            await ports.transport.release(deliveries)


def _count(items: Iterable[Item]) -> int:
    return sum(len(item.deliveries) for item in items)
