"""What the stores know about messages: one by its id, a conversation, pending records, and claims as a picture of time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from onceonly.assembly.operations import OpenedOperations
from onceonly.model.artifact import Reservation
from onceonly.model.conversation import EXACT, JournalEvent, conversation_key
from onceonly.model.identity import CLAIM_KEY_BYTES, Identity
from onceonly.model.record import Record
from onceonly.operations.knowledge import Found, FoundMessage, find_message
from onceonly.operations.overview import ClaimsPicture, list_pending, list_reservations, picture_claims
from onceonly.ports.ring import TimeBucket, TimeBucketState
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.gate import Refusal
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices
from onceonly_dashboard.redaction import Redact, redacted

Read = Callable[[OpenedOperations], Awaitable[dict[str, Any]]]

ROWS = 100
PENDING_SECONDS, CLAIMS_SECONDS = 10, 60
LONGEST_ID = 2000
MOST_LETTERS = 20
"""Dead letters that one endpoint reads for a page. Events of others have a link and no reason."""
LONGEST_REASON = 200
MOST_EVENTS = 1000
DEEPEST = 12
"""Levels of the tree that are indented. Deeper ones are shown at this level, with their number."""
_NO_REASONS: Mapping[str, str | None] = MappingProxyType({})


async def find(request: PageRequest, services: PageServices) -> PageContent:
    """Show what each endpoint knows about one message."""
    source, id_ = request.query_value("source")[:LONGEST_ID], request.query_value("id")[:LONGEST_ID]
    answers: list[dict[str, Any]] = []
    if source and id_:
        identity = Identity(source, id_)

        async def read(opened: OpenedOperations) -> dict[str, Any]:
            answer = await find_message(opened, identity)
            return {
                **_found(answer, services.options.redact),
                **await _story(opened, identity, answer, services.options.redact),
            }

        answers = await asyncio.gather(*(answer_of(each, read) for each in services.endpoints.values()))
    return PageContent(template="find.html", title="Find", data={"source": source, "id": id_, "answers": answers})


async def _story(opened: OpenedOperations, identity: Identity, answer: FoundMessage, redact: Redact | None) -> dict[str, Any]:
    """Return what the journal has about a message, and its conversation, which a dead letter without events has as well."""
    if (journal := opened.message_journal) is None:
        return {"journal": False, "events": [], "conversation": ""}
    events = (await journal.of_message(identity)).events[:ROWS]
    reasons = await reasons_of(opened, events, redact)
    keys = [each.conversation for each in events[:1]]
    keys += [conversation_key(each.message) for each in answer.letters if each.message is not None]
    return {
        "journal": True,
        "events": [shown_event(each, reasons) for each in events],
        "conversation": keys[0].hex() if keys else "",
    }


async def answer_of(probes: EndpointProbes, read: Read) -> dict[str, Any]:
    """Return what one endpoint answers, or why it does not."""
    found, problem = await probes.answer(read)
    return {"endpoint": probes.name, "problem": problem, **(found or {})}


async def _answers(
    request: PageRequest, services: PageServices, page: str, read: Read, *, period: float
) -> list[dict[str, Any]]:
    """Return what each endpoint answers, shared by all viewers of the page for `period` seconds."""
    reads = (
        services.shared(request, (page, each.name), partial(answer_of, each, read), period)
        for each in services.endpoints.values()
    )
    return [dict(answer) for answer in await asyncio.gather(*reads)]


_LEVELS = {
    Found.HANDLED: "healthy",
    Found.PENDING: "degraded",
    Found.DEAD_LETTER: "failing",
    Found.RESERVED: "degraded",
}


def _found(answer: FoundMessage, redact: Redact | None) -> dict[str, Any]:
    knowledge = answer.knowledge
    record = knowledge.record
    return {
        "found": answer.found.value,
        "level": _LEVELS.get(answer.found, "unknown"),
        "claim": knowledge.claim.value,
        "instant": knowledge.instant or None,
        "fingerprint": knowledge.fingerprint.hex(),
        "pending": len(record.effects) + len(record.requests) if record else 0,
        "letters": [{"key": each.key, "reason": redacted(each, redact).reason[:200], "at": each.at} for each in answer.letters],
        "letters_searched": answer.letters_searched,
        "reservations": [{"attempt": each.attempt, "at": each.at} for each in answer.reservations],
    }


async def pending(request: PageRequest, services: PageServices) -> PageContent:
    """List pending records and open attempts, the oldest first."""

    async def read(opened: OpenedOperations) -> dict[str, Any]:
        records = await list_pending(opened, request.now + 1)
        attempts = await list_reservations(opened, request.now + 1)
        return {
            "searched": records.searched,
            "total": len(records.rows),
            "more": records.more,
            "records": [_record(each) for each in records.rows[:ROWS] if isinstance(each, Record)],
            "attempts_searched": attempts.searched,
            "attempts": [_attempt(each, request.now) for each in attempts.rows[:ROWS] if isinstance(each, Reservation)],
            "attempts_total": len(attempts.rows),
        }

    answers = await _answers(request, services, "pending", read, period=PENDING_SECONDS)
    for each, probes in zip(answers, services.endpoints.values(), strict=True):
        state = probes.store.value
        each["oldest"] = state.oldest if state is not None else None
    return PageContent(
        template="pending.html", title="Pending", data={"endpoints": answers, "shown": ROWS}, every=PENDING_SECONDS
    )


def _record(record: Record) -> dict[str, Any]:
    targets = [f"{each.message.type} to {each.to}" if each.to else f"{each.message.type}, event" for each in record.effects]
    targets += ["HTTP request" for _ in record.requests]
    return {"source": record.identity.source, "id": record.identity.id, "targets": targets[:5], "count": len(targets)}


def _attempt(reservation: Reservation, now: int) -> dict[str, Any]:
    return {
        "attempt": reservation.attempt,
        "source": reservation.identity.source,
        "id": reservation.identity.id,
        "seconds": max(0, now - reservation.at) // 1000,
        "cancelled": reservation.cancelled,
    }


async def claims(request: PageRequest, services: PageServices) -> PageContent:
    """Show the time buckets of each endpoint's claims."""

    async def read(opened: OpenedOperations) -> dict[str, Any]:
        picture = await picture_claims(opened)
        return {"picture": _picture(picture) if picture is not None else None}

    answers = await _answers(request, services, "claims", read, period=CLAIMS_SECONDS)
    for each, probes in zip(answers, services.endpoints.values(), strict=True):
        each["why"] = _why_no_buckets(probes)
        each["store"] = str(probes.settings.places.store)
    targets = {name: services.targets.get(name, "module:endpoint") for name in services.endpoints}
    view = {"targets": targets}
    return PageContent(template="claims.html", title="Claims", data={"endpoints": answers}, view=view, every=CLAIMS_SECONDS)


def _why_no_buckets(probes: EndpointProbes) -> str:
    if probes.settings.plan.history is None:
        return "This endpoint does not recognize messages by claims in its store."
    if not probes.settings.store_plan.has_tables:
        return "This store keeps the history of messages without time buckets."
    return "No message has been handled yet: the first one divides the time."


def _picture(picture: ClaimsPicture) -> dict[str, Any]:
    return {
        "retention": picture.retention // 1000,
        "width": picture.width // 1000,
        "now": picture.now,
        "late": list(picture.late),
        "buckets": [_bucket(each, picture) for each in picture.buckets],
    }


def _bucket(bucket: TimeBucket, picture: ClaimsPicture) -> dict[str, Any]:
    if bucket.number in picture.late:
        kind, word = "late", "late"
    elif bucket.state is TimeBucketState.UNLABELLED:
        kind, word = "free", "free"
    elif bucket.start <= picture.now < bucket.end:
        kind, word = "now", "now"
    elif bucket.start > picture.now:
        kind, word = "free", "ahead"
    else:
        kind, word = "full", "kept" if bucket.end + picture.retention > picture.now else "over"
    return {
        "number": bucket.number,
        "kind": kind,
        "word": word,
        "start": bucket.start or None,
        "end": bucket.end or None,
        "state": bucket.state.value,
        "pending": bucket.pending,
        "late": bucket.late // 1000,
    }


async def conversation(request: PageRequest, services: PageServices) -> PageContent:
    """Show what happened to the messages of one conversation, at most 1,000 events."""
    key = _key(request.path_params["key"])
    events: list[JournalEvent] = []
    reasons: dict[str, str | None] = {}

    async def read(opened: OpenedOperations) -> dict[str, Any]:
        if (journal := opened.message_journal) is None:
            return {"journal": False, "full": False, "more": False}
        part = await journal.conversation(key)
        events.extend(part.events)
        reasons.update(await reasons_of(opened, part.events, services.options.redact))
        return {"journal": True, "full": part.is_full, "more": part.more}

    answers = await asyncio.gather(*(answer_of(each, read) for each in services.endpoints.values()))
    events.sort(key=lambda each: each.at)
    more = len(events) > MOST_EVENTS or any(each.get("more") for each in answers)
    return PageContent(
        template="conversation.html",
        title="Conversation",
        data={"key": key.hex(), "messages": tree_of(events[:MOST_EVENTS], reasons), "more": more, "endpoints": answers},
    )


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != CLAIM_KEY_BYTES:
        raise Refusal(HTTPStatus.NOT_FOUND, "A conversation has a key of 32 hexadecimal digits.")
    return key


def tree_of(events: Sequence[JournalEvent], reasons: Mapping[str, str | None] = _NO_REASONS) -> list[dict[str, Any]]:
    """Return the messages in the order of a tree, with their depth and events. Each message is there once.

    `reasons` are those of dead letters, by key.

    A message without a known parent is a root, and so is the first message of a cycle.
    """
    own: dict[bytes, list[JournalEvent]] = {}
    parents: dict[bytes, bytes] = {}
    for event in events:
        own.setdefault(event.message, []).append(event)
        if event.parent is not None:
            parents.setdefault(event.message, event.parent)
    children: dict[bytes, list[bytes]] = {}
    for message in own:
        if (parent := parents.get(message)) in own and parent is not None:
            children.setdefault(parent, []).append(message)
    rows: list[dict[str, Any]] = []
    seen: set[bytes] = set()

    def walk(roots: Iterable[bytes]) -> None:
        waiting = [(root, 0) for root in reversed(list(roots))]
        while waiting:
            message, depth = waiting.pop()
            if message in seen:
                continue
            seen.add(message)
            rows.append(_row(own[message], depth, reasons))
            waiting.extend((child, depth + 1) for child in reversed(children.get(message, [])))

    walk(message for message in own if parents.get(message) not in own)
    for message in own:
        walk([message])
    return rows


def _row(events: Sequence[JournalEvent], depth: int, reasons: Mapping[str, str | None]) -> dict[str, Any]:
    first = events[0]
    return {
        "source": first.identity.source,
        "id": first.identity.id,
        "type": first.type,
        "depth": depth,
        "indent": min(depth, DEEPEST),
        "events": [shown_event(each, reasons) for each in events],
    }


async def reasons_of(opened: OpenedOperations, events: Iterable[JournalEvent], redact: Redact | None) -> dict[str, str | None]:
    """Return the reasons of the latest dead letters among these events, by key, as they may be shown.

    The reason of a letter that is gone is None.
    """
    keys = list(dict.fromkeys(each.letter for each in events if each.letter))[-MOST_LETTERS:]
    reasons: dict[str, str | None] = {}
    for key in keys:
        found = await opened.letters.get(key)
        is_own = found is not None and found.endpoint == opened.endpoint
        reasons[key] = redacted(found, redact).reason[:LONGEST_REASON] if found is not None and is_own else None
    return reasons


def shown_event(event: JournalEvent, reasons: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a page has of an event. `duration` is in microseconds. `letter` is empty for one that is gone."""
    is_gone = event.letter in reasons and reasons[event.letter] is None
    return {
        "outcome": event.outcome,
        "exact": event.outcome in EXACT,
        "at": event.at,
        "endpoint": event.endpoint,
        "process": event.process,
        "attempt": event.attempt or None,
        "duration": event.duration,
        "error": event.error,
        "letter": "" if is_gone else event.letter,
        "letter_gone": is_gone,
        "reason": reasons.get(event.letter) or "",
    }
