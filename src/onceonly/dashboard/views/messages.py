"""What the stores know about messages: find one by id, pending records, and claims as a picture of time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from onceonly.assembly.operations import OpenedOperations
from onceonly.dashboard.asking import Ask
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.probes import ANSWER_SECONDS, OPEN_SECONDS, answering
from onceonly.dashboard.redaction import Redact, redacted
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.views.journal import reasons_of, shown_event
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.model.artifact import Reservation
from onceonly.model.conversation import conversation_key
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.operations.finding import Found, FoundMessage, find_message
from onceonly.operations.overview import ClaimsPicture, list_pending, list_reservations, picture_claims
from onceonly.ports.ring import TimeBucket, TimeBucketState

Look = Callable[[OpenedOperations], Awaitable[dict[str, Any]]]

ROWS = 100
PENDING_SECONDS, CLAIMS_SECONDS = 10, 60
LONGEST_ID = 2000


async def find(ask: Ask) -> Page:
    """Show what each endpoint knows about one message."""
    source, id_, text = ask.asked("source")[:LONGEST_ID], ask.asked("id")[:LONGEST_ID], ask.asked("at")
    at = _instant(text)
    answers: list[dict[str, Any]] = []
    if source and id_:
        identity = Identity(source, id_)

        async def look(opened: OpenedOperations) -> dict[str, Any]:
            answer = await find_message(opened, identity, at)
            return {**_found(answer, ask.dashboard.redact), **await _story(opened, identity, answer, ask.dashboard.redact)}

        answers = await asyncio.gather(*(answer_of(each, look) for each in ask.dashboard.watched.values()))
    return Page(
        template="find.html",
        title="Find",
        data={"source": source, "id": id_, "at": at or None, "answers": answers},
        view={"text": text},
    )


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


def _instant(text: str) -> int:
    """Read a time in UTC, such as 2026-11-22T12:01 or 2026-11-22 12:01:07. 0 for an empty one. Raises Refused."""
    if not text.strip():
        return 0
    try:
        return int(datetime.fromisoformat(text.strip().removesuffix("Z")).replace(tzinfo=UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "The time is not valid. Write it as 2026-11-22 12:01, in UTC.") from error


async def answer_of(watched: WatchedEndpoint, look: Look) -> dict[str, Any]:
    """Return what one endpoint answers, or why it does not."""
    try:
        async with asyncio.timeout(OPEN_SECONDS), watched.open_operations() as opened, answering():
            return {"endpoint": watched.name, "problem": "", **await look(opened)}
    except OnceOnlyError as error:
        return {"endpoint": watched.name, "problem": str(error)}
    except TimeoutError:
        return {"endpoint": watched.name, "problem": f"no answer within {ANSWER_SECONDS:g} s"}


async def _answers(ask: Ask, page: str, look: Look, period: float) -> list[dict[str, Any]]:
    """Return what each endpoint answers, shared by all viewers of the page for `period` seconds."""
    reads = (ask.shared((page, each.name), partial(answer_of, each, look), period) for each in ask.dashboard.watched.values())
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


async def pending(ask: Ask) -> Page:
    """List pending records and open attempts, the oldest first."""

    async def look(opened: OpenedOperations) -> dict[str, Any]:
        records = await list_pending(opened, ask.now + 1)
        attempts = await list_reservations(opened, ask.now + 1)
        return {
            "searched": records.searched,
            "total": len(records.rows),
            "more": records.more,
            "records": [_record(each) for each in records.rows[:ROWS] if isinstance(each, Record)],
            "attempts_searched": attempts.searched,
            "attempts": [_attempt(each, ask.now) for each in attempts.rows[:ROWS] if isinstance(each, Reservation)],
            "attempts_total": len(attempts.rows),
        }

    answers = await _answers(ask, "pending", look, PENDING_SECONDS)
    for each, watched in zip(answers, ask.dashboard.watched.values(), strict=True):
        state = watched.store.value
        each["oldest"] = state.oldest if state is not None else None
    return Page(template="pending.html", title="Pending", data={"endpoints": answers, "shown": ROWS}, every=PENDING_SECONDS)


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


async def claims(ask: Ask) -> Page:
    """Show the time buckets of each endpoint's claims."""

    async def look(opened: OpenedOperations) -> dict[str, Any]:
        picture = await picture_claims(opened)
        return {"picture": _picture(picture) if picture is not None else None}

    answers = await _answers(ask, "claims", look, CLAIMS_SECONDS)
    for each, watched in zip(answers, ask.dashboard.watched.values(), strict=True):
        each["why"] = _why_no_buckets(watched)
        each["store"] = str(watched.settings.places.store)
    targets = {name: ask.dashboard.targets.get(name, "module:endpoint") for name in ask.dashboard.watched}
    view = {"targets": targets}
    return Page(template="claims.html", title="Claims", data={"endpoints": answers}, view=view, every=CLAIMS_SECONDS)


def _why_no_buckets(watched: WatchedEndpoint) -> str:
    plan, store = watched.settings.plan, watched.settings.places.store
    if plan.history is None:
        return "This endpoint does not recognize messages by claims in its store."
    if not store.is_sql:
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
