"""The page of a conversation: messages as a tree of causes, from the journals of the endpoints."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from onceonly.assembly.operations import OpenedOperations
from onceonly.dashboard.asking import Ask
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.views.journal import reasons_of, shown_event
from onceonly.dashboard.views.messages import answer_of
from onceonly.model.conversation import JournalEvent
from onceonly.model.identity import CLAIM_KEY_BYTES

MOST_EVENTS = 1000
DEEPEST = 12
"""Levels of the tree that are indented. Deeper ones are shown at this level, with their number."""
_NO_REASONS: Mapping[str, str | None] = MappingProxyType({})


async def conversation(ask: Ask) -> Page:
    """Show what happened to the messages of one conversation, at most 1,000 events."""
    key = _key(ask.params["key"])
    events: list[JournalEvent] = []
    reasons: dict[str, str | None] = {}

    async def look(opened: OpenedOperations) -> dict[str, Any]:
        if (journal := opened.message_journal) is None:
            return {"journal": False, "full": False, "more": False}
        part = await journal.conversation(key)
        events.extend(part.events)
        reasons.update(await reasons_of(opened, part.events, ask.dashboard.redact))
        return {"journal": True, "full": part.is_full, "more": part.more}

    answers = await asyncio.gather(*(answer_of(each, look) for each in ask.dashboard.watched.values()))
    events.sort(key=lambda each: each.at)
    more = len(events) > MOST_EVENTS or any(each.get("more") for each in answers)
    return Page(
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
        raise Refused(HTTPStatus.NOT_FOUND, "A conversation has a key of 32 hexadecimal digits.")
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
