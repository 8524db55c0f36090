"""Export: dead letters as a file, without what the pages hide."""

from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus

from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from onceonly.dashboard.asking import Ask
from onceonly.dashboard.bodies import is_secret
from onceonly.dashboard.gate import DOWNLOAD_POLICY, Refused, protect
from onceonly.dashboard.redaction import HIDDEN, Redact, redacted
from onceonly.dashboard.views.confirming import MOST_EXPORTED, MOST_REASON, TOO_MANY, Scope, check_confirmed, operator_of
from onceonly.formats.cloudevents import HISTORY, attribute_of
from onceonly.formats.letter_lines import to_line, to_redacted_line
from onceonly.model.action import ActionKind
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.escaped import RAW_HEADER
from onceonly.model.message import Headers
from onceonly.operations.actions import store_export
from onceonly.ports.dead_letters import DeadLetters, Extent, LetterIndex

PAGE = 20
"""Letters that are read at once: each may have a body of many megabytes."""

Placed = tuple[int, DeadLetter]
"""A letter with its position, 0 where letters have none."""


async def export(ask: Ask) -> Response:
    """Return the letters as JSON Lines, for a download. The action is stored before the first line."""
    scope = Scope(ask)
    async with scope.watched.open_letters() as letters:
        extent = await check_confirmed(ask, scope, ActionKind.EXPORT, letters)
        if extent.total > MOST_EXPORTED:
            raise Refused(HTTPStatus.BAD_REQUEST, TOO_MANY)
        first = await _page(scope, letters, extent)
        stored = await store_export(
            scope.watched.log_of(letters), operator_of(ask), scope.selection, extent, reason=ask.sent("reason")[:MOST_REASON]
        )
    ask.dashboard.auditor.ended(stored)
    response = StreamingResponse(_lines(scope, extent, first, ask.dashboard.redact), media_type="application/octet-stream")
    response.headers["content-disposition"] = f'attachment; filename="{scope.key or "dead-letters"}.jsonl"'
    return protect(response, policy=DOWNLOAD_POLICY)


async def _lines(scope: Scope, extent: Extent, page: Sequence[Placed], redact: Redact | None) -> AsyncIterator[bytes]:
    """Yield the lines of a page, then of the next ones. Not more letters than were confirmed."""
    left = extent.total
    while page and left > 0:
        yield b"".join(line_of(letter, redact) for _, letter in page[:left])
        left -= len(page)
        if left > 0:
            async with scope.watched.open_letters() as letters:
                page = await _page(scope, letters, extent, page[-1])


async def _page(scope: Scope, letters: DeadLetters, extent: Extent, last: Placed | None = None) -> Sequence[Placed]:
    """Return the letters after `last`, by default the first ones."""
    if scope.key:
        return [(0, await scope.letter(letters))]
    if isinstance(letters, LetterIndex):
        return await letters.placed(scope.filter, after=last[0] if last else 0, upto=extent.last, limit=PAGE)
    return [(0, letter) for letter in await letters.page(scope.filter, after=last[1].key if last else "", limit=PAGE)]


def line_of(letter: DeadLetter, redact: Redact | None) -> bytes:
    """Return the line of a letter as it may be shown."""
    shown = _without_secrets(redacted(letter, redact), repeats=redact is not None)
    return to_line(letter) if shown == letter else to_redacted_line(shown, letter.key)


def _without_secrets(letter: DeadLetter, *, repeats: bool) -> DeadLetter:
    message = letter.message
    if message is not None:
        message = replace(
            message,
            headers=_hidden(message.headers, repeats=repeats),
            extensions=tuple((name, HIDDEN if is_secret(name) else value) for name, value in message.extensions),
        )
    return replace(letter, headers=_hidden(letter.headers, repeats=repeats), message=message)


def _hidden(headers: Headers, *, repeats: bool) -> Headers:
    """Hide what the page of a letter hides: secrets, the bytes of headers that are not UTF-8, and with `repeats` the history.

    The history in a header has the texts of exceptions.
    """
    return tuple(
        (name, HIDDEN if is_secret(name) or name == RAW_HEADER or (repeats and attribute_of(name) == HISTORY) else value)
        for name, value in headers
    )
